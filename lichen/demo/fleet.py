"""The demo's course: start everything, watch the rounds, deploy, compare, stop everything.

Every wait has a bound, and says what it waited for when the bound is reached.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from lichen.demo import chaos, observer, plan, study
from lichen.demo.prepare import Stage
from lichen.demo.processes import Child, Nursery
from lichen.demo.screen import Screen
from lichen.demo.story import ObserverStory
from lichen.watch import FleetView
from protocol.errors import Transient
from runtime.mqtt import Link
from runtime.settings import MqttSettings

_LOOK_S: Final = 0.25
_LOW: Final = 19
"""Niceness of what runs beside the fleet."""
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Fleet:
    """The processes of one demo run, and the picture of them."""

    def __init__(self, stage: Stage, options: plan.Options, screen: Screen) -> None:
        self.stage = stage
        self.options = options
        self.screen = screen
        self.view = FleetView(plan.FLEET)
        self.agents: dict[str, Child] = {}
        self.doing = "starting"
        """What is waited for: said when the time is over."""
        self._nursery = Nursery(screen.say)
        self._changed = asyncio.Event()
        self._beside: dict[str, Child] = {}
        self._coordinator: Child | None = None

    @property
    def _layout(self) -> plan.Layout:
        return self.stage.layout

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Fleet"]:
        """Broker, coordinator and agents, and the watching link; all are stopped on the way out."""
        link: asyncio.Task[None] | None = None
        try:
            await self._start_broker()
            if self.options.study:
                await self._start_study()
            link = asyncio.create_task(self._watch(), name="watch")
            self._coordinator = await self._start("coordinator", "coordinator", "serve")
            for device in plan.DEVICES:
                await self._start_agent(device.name)
            self.screen.say(f"one broker, one coordinator and {len(plan.DEVICES)} agents are running")
            yield self
        finally:
            if link is not None:
                link.cancel()
                await asyncio.wait([link])
            await self._stop_in_order()

    async def _stop_in_order(self) -> None:
        """Agents first, then the coordinator, the broker last."""
        await self._nursery.stop(*self._beside, plan.OBSERVER, *self.agents)
        await self._nursery.stop("coordinator")
        await self._nursery.stop("broker")

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-P", "-m", *words]

    async def _start(self, name: str, *words: str) -> Child:
        argv = self._command("lichen", *words, "--config", str(self._layout.config(name)))
        return await self._nursery.start(Child(name, argv, self._layout.log(name), _ONE_THREAD))

    async def _start_broker(self) -> None:
        argv = self._command("lichen.broker", "--port", str(self._layout.port))
        child = Child("broker", argv, self._layout.log("broker"))
        # Not kept: its retained messages and sessions die with it, so that a restart would hide a failure.
        await self._nursery.start(child, keep=False)

        async def listening() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._layout.port)
                writer.close()
                await writer.wait_closed()
                return True
            return False

        await self.wait("the broker to listen", listening, 15.0)

    async def _start_agent(self, name: str) -> None:
        started = time.monotonic()
        speed = self.options.speed

        def go_on() -> None:
            """A restarted device's sensors have not waited: its recording goes on where time is now."""
            passed = min((time.monotonic() - started) * speed, self.stage.lengths_s[name])
            self._layout.start_s[name] = round(passed, 2)
            plan.write_toml(self._layout.config(name), plan.agent_config(self._layout, name, speed))

        self._nursery.before_restart[name] = go_on
        self.agents[name] = await self._start(name, "agent", "run")

    async def _start_study(self) -> None:
        job = {
            "out": str(self._layout.root / "study.jsonl"),
            "rounds": self.options.rounds,
            "seeds": list(range(self.options.seed + 1, self.options.seed + 1 + self.options.study_seeds)),
        }
        await self._start_beside("study", "lichen.demo.study", job)

    async def _start_beside(self, name: str, module: str, job: dict[str, Any]) -> Child:
        file = self._layout.root / f"{name}-job.json"
        file.write_text(json.dumps(job))
        child = Child(name, self._command(module, str(file)), self._layout.log(name), _ONE_THREAD, _LOW)
        self._beside[name] = child
        return await self._nursery.start(child, keep=False)

    async def _watch(self) -> None:
        """Fold what the broker says into the view."""
        settings = MqttSettings(host="127.0.0.1", port=self._layout.port)
        link = Link(settings, f"demo-{plan.FLEET}", filters=self.view.filters())
        running = asyncio.create_task(link.run(), name="watch link")
        try:
            async for message in link.messages():
                self.view.apply(message.topic, message.payload)
                message.ack()
                self._changed.set()
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def wait(
        self, what: str, done: Callable[[], Awaitable[bool]] | Callable[[], bool], timeout_s: float
    ) -> None:
        """Draw the picture until ``done``.

        Raises:
            Transient: the time is over, or a child failed for good; the message says what was waited for.
        """
        self.doing = what
        end = time.monotonic() + timeout_s
        while True:
            found = done()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            if self._nursery.failed.done():
                raise self._nursery.failed.result()
            if time.monotonic() > end:
                raise Transient(f"waited {timeout_s:.0f} s for {what}; {self._why()}")
            self._tell()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_S)

    def _why(self) -> str:
        told = self.view.round
        words = told.waiting_for if told and told.waiting_for else "the broker has said nothing of it"
        return f"{words} (logs: {self._layout.root / 'logs'})"

    def _tell(self) -> None:
        if "study" in self._beside:
            finished = len(study.read(self._layout.root / "study.jsonl"))
            total = self.options.study_seeds * (len(study.VARIANTS) + 1)
            self.screen.note = f"study beside it, at low priority: {finished}/{total} simulated fleets"
        people = {d.name: ", ".join(map(str, d.people)) for d in plan.DEVICES}
        self.screen.show(self.view, people)

    async def learn(self) -> None:
        """All rounds, and in the middle of them, on demand, the chaos; ends when the bundle is announced."""
        striking: asyncio.Task[str] | None = None
        coordinator = self._coordinator
        if self.options.chaos and coordinator is not None:
            striking = asyncio.create_task(
                chaos.strike(
                    self._nursery,
                    agents=self.agents,
                    coordinator=coordinator,
                    view=self.view,
                    screen=self.screen,
                    changed=self._changed,
                )
            )

        def finished() -> bool:
            if striking is not None and striking.done():
                striking.result()
            deployed = self.view.model is not None and self.view.model.version == self.options.rounds
            return deployed and (striking is None or striking.done())

        try:
            await self.wait("the last round's model to be announced", finished, self.options.timeout_s)
        finally:
            if striking is not None and not striking.done():
                striking.cancel()
                await asyncio.wait([striking])
        model = self.view.model
        if model is not None:
            self.screen.say(
                f"version {model.version} is exported: an ONNX bundle of {model.bundle.size} bytes"
            )

    async def observe(self) -> ObserverStory:
        """Deploy to the observing device, and listen to what it says of its live stream."""
        place = await asyncio.to_thread(observer.environment, self.options.observer_python)
        free = await asyncio.to_thread(place.torch_free)
        told = ObserverStory(
            plan.OBSERVER,
            plan.OBSERVED,
            str(place.python),
            torch_free=free,
            how=place.how,
            fault=self.stage.fault,
        )
        self.screen.say(
            f"{plan.OBSERVER} observes in {place.how}; torch there: {'absent' if free else 'PRESENT'}"
        )
        argv = place.command("agent", "run", "--config", str(self._layout.config(plan.OBSERVER)))
        child = Child(plan.OBSERVER, argv, self._layout.log(plan.OBSERVER), _ONE_THREAD)
        await self._nursery.start(child)
        path = self._layout.predictions
        await self.wait(
            f"{plan.OBSERVER} to fetch the model and predict", lambda: bool(observer.predictions(path)), 60.0
        )
        if child.pid is not None:
            told.memory_mb, told.rss_mb = await asyncio.to_thread(observer.memory_mb, child.pid)
            self.screen.say(
                f"{plan.OBSERVER} predicts: {told.memory_mb:.0f} MB (PSS), {told.rss_mb:.0f} MB (RSS)"
            )
        length = self.stage.lengths_s[plan.OBSERVER]
        last = length - 2 * self.stage.task.window.length_s

        def over() -> bool:
            told.predictions = observer.predictions(path)
            known = told.accuracy()
            if known is not None:
                self.screen.note = (
                    f"{plan.OBSERVER}, live: {100 * known:.0f} % of {len(told.predictions)} windows right"
                )
            return bool(told.predictions) and told.predictions[-1].t >= last

        bound = length / plan.OBSERVER_SPEED + 30.0
        await self.wait(f"the end of {plan.OBSERVER}'s stream ({length:.0f} s of it)", over, bound)
        told.version = self.view.model.version if self.view.model else None
        return told

    async def stop_agents(self) -> None:
        """The training devices' work is done; their stores can be read."""
        await self._nursery.stop(*self.agents)

    async def history(self) -> dict[str, Any]:
        """What the coordinator's database says."""
        config = str(self._layout.config("coordinator"))
        argv = self._command("lichen", "coordinator", "history", "--config", config, "--format", "json")
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), 60.0)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Transient("lichen coordinator history took more than 60 s") from None
        if process.returncode != 0:
            raise Transient(f"lichen coordinator history: {err.decode(errors='replace')[-500:]}")
        found: dict[str, Any] = json.loads(out)
        return found

    async def baseline(self, stores: dict[str, Path]) -> list[dict[str, Any]]:
        """What each device reaches alone, and the sizes on the wire."""
        out = self._layout.root / "alone.jsonl"
        job = {
            "out": str(out),
            "task": self.stage.task.model_dump(mode="json"),
            "unseen": str(self._layout.unseen),
            "stores": {name: str(folder) for name, folder in stores.items()},
            "rounds": self.options.rounds,
            "seed": self.options.seed,
        }
        child = await self._start_beside("alone", "lichen.demo.baseline", job)
        await self._finish(child, "what each device reaches alone")
        return [json.loads(line) for line in out.read_text().splitlines()]

    async def finish_study(self) -> list[study.Line]:
        """Wait for the simulated fleets."""
        if "study" in self._beside:
            await self._finish(self._beside["study"], "the simulated fleets")
        return study.read(self._layout.root / "study.jsonl")

    async def _finish(self, child: Child, what: str) -> None:
        await self.wait(what, lambda: child.pid is None, self.options.timeout_s)
        code = child.process.returncode if child.process else None
        if code != 0:
            raise Transient(
                f"{what}: the process ended with exit status {code}; its log ends:\n{child.tail()}"
            )
