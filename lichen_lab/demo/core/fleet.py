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
from typing import Any, Final, Generic, TypeVar

from lichen_lab.demo.core import chaos
from lichen_lab.demo.core.results import Results
from lichen_lab.demo.core.scenario import Stage
from lichen_lab.demo.core.screen import Screen
from lichen_lab.simulation.data import spar_fleet as plan
from lichen_lab.simulation.processes import environment
from lichen_lab.simulation.processes.process import ONE_THREAD, Child, Nursery
from protocol.errors import Transient
from runtime.fleet_view import FleetView
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings

_LOOK_S: Final = 0.25
_LOW: Final = 10
"""Niceness of what runs beside the fleet."""


StageT_co = TypeVar("StageT_co", bound=Stage[Any], covariant=True)


class Fleet(Generic[StageT_co]):
    """The processes of one demo run, and the picture of them."""

    def __init__(
        self, stage: StageT_co, options: plan.Options, place: environment.Environment, screen: Screen
    ) -> None:
        self.stage = stage
        self.place = place
        self.options = options
        self.screen = screen
        self.view = FleetView(plan.FLEET)
        self.agents: dict[str, Child] = {}
        self.doing = "starting"
        """What is waited for: said when the time is over."""
        self.struck: chaos.Strike | None = None
        """What chaos killed."""
        self._kept: list[str] = []
        self._nursery = Nursery(screen.say)
        self._changed = asyncio.Event()
        self.beside: dict[str, Child] = {}
        """Computations at low priority, by name."""
        self.note: Callable[[], str] | None = None
        """What happens beside the rounds, for the screen."""
        self._coordinator: Child | None = None

    @property
    def layout(self) -> plan.Layout:
        """Where things lie."""
        return self.stage.layout

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Fleet[StageT_co]"]:
        """Broker, coordinator and agents, and the watching link; all are stopped on the way out."""
        link: asyncio.Task[None] | None = None
        try:
            await self._start_broker()
            link = asyncio.create_task(self._watch(), name="watch")
            self._coordinator = await self._start("coordinator", "coordinator", "serve")
            for name in self.stage.people:
                await self.start_agent(name)
            self.screen.say(f"one broker, one coordinator and {len(self.stage.people)} agents are running")
            yield self
        finally:
            if link is not None:
                link.cancel()
                await asyncio.wait([link])
            await self._stop_in_order()

    async def _stop_in_order(self) -> None:
        """Agents first, then the coordinator, the broker last."""
        await self._nursery.stop(*self.beside, *self._kept, *self.agents)
        await self._nursery.stop("coordinator")
        await self._nursery.stop("broker")

    def command(self, *words: str) -> list[str]:
        """``python -P -m WORDS``."""
        return [sys.executable, "-P", "-m", *words]

    async def _start(self, name: str, *words: str) -> Child:
        argv = self.command("lichen", *words, "--config", str(self.layout.config(name)))
        return await self._nursery.start(Child(name, argv, self.layout.log(name), ONE_THREAD))

    async def _start_broker(self) -> None:
        argv = self.command(
            "lichen_lab.simulation.processes.embedded_broker", "--port", str(self.layout.port)
        )
        child = Child("broker", argv, self.layout.log("broker"))
        # Not kept: its retained messages and sessions die with it, so that a restart would hide a failure.
        await self._nursery.start(child, keep=False)

        async def listening() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.layout.port)
                writer.close()
                await writer.wait_closed()
                return True
            return False

        await self.wait("the broker to listen", listening, 15.0)

    async def start_agent(self, name: str) -> None:
        """Start a training device."""
        started = time.monotonic()
        speed = self.options.speed

        def go_on() -> None:
            """A restarted device's sensors have not waited: its recording goes on where time is now."""
            passed = min((time.monotonic() - started) * speed, self.stage.lengths_s[name])
            self.layout.start_s[name] = round(passed, 2)
            plan.write_toml(self.layout.config(name), self.stage.agent(name))

        self._nursery.before_restart[name] = go_on
        self.agents[name] = await self._start(name, "agent", "run")

    async def start_observer(self, name: str) -> Child:
        """Start a device that only observes, in its own environment; it is started again when it dies."""
        argv = self.place.command("agent", "run", "--config", str(self.layout.config(name)))
        self._kept.append(name)
        return await self._nursery.start(Child(name, argv, self.layout.log(name), ONE_THREAD))

    async def start_beside(self, name: str, module: str, job: dict[str, Any]) -> Child:
        """Start a computation of low priority that reads its job from a file; it ends by itself."""
        file = self.layout.root / f"{name}-job.json"
        file.write_text(json.dumps(job))
        child = Child(name, self.command(module, str(file)), self.layout.log(name), ONE_THREAD, _LOW)
        self.beside[name] = child
        return await self._nursery.start(child, keep=False)

    async def _watch(self) -> None:
        """Fold what the broker says into the view."""
        settings = MqttSettings(host="127.0.0.1", port=self.layout.port)
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
                raise Transient(f"waited {timeout_s:.0f} s for {what}; {self.why()}")
            self._tell()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_S)

    def why(self) -> str:
        """What the round waits for, and where to read more."""
        told = self.view.round
        words = told.waiting_for if told and told.waiting_for else "the broker has said nothing of it"
        return f"{words} (logs: {self.layout.root / 'logs'})"

    def _tell(self) -> None:
        if self.note is not None:
            self.screen.note = self.note()
        self.screen.show(self.view, self.stage.people)

    def learned(self) -> bool:
        """Whether all rounds are over, and the last version is made."""
        now = self.view.round
        return now is not None and now.phase == "done" and now.version == self.options.rounds

    def announced(self) -> bool:
        """Whether the last version is exported and announced."""
        return self.view.model is not None and self.view.model.version == self.options.rounds

    async def learn(self, announced: Callable[[], bool]) -> None:
        """All rounds, and in the middle of them, on demand, the chaos; ends when ``announced`` says so."""
        striking: asyncio.Task[chaos.Strike] | None = None
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
                self.struck = striking.result()
            return announced()

        try:
            await self.wait("the last round's model to be announced", finished, self.options.timeout_s)
        finally:
            if striking is not None and not striking.done():
                striking.cancel()
                await asyncio.wait([striking])
                self.screen.say(
                    "chaos: no moment was found in which one device had delivered and another had not"
                )

    def tell_chaos(self, story: Results) -> None:
        """Who was killed, and whether they are back now, after the last round."""
        if self.struck is None or self._coordinator is None:
            return
        name = self.struck.device
        story.struck, story.struck_round = name, self.struck.round
        story.returned = self.struck.returned([self._coordinator, self.agents[name]])
        seen = self.view.devices.get(name)
        story.reconnected = name in story.returned and seen is not None and seen.status == "online"

    async def stop_agents(self) -> None:
        """The training devices' work is done; their stores can be read."""
        await self._nursery.stop(*self.agents)
