"""The processes of a demo: start, observe, train all rounds, stop.

Every wait has a bound, and an error that says what was waited for.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, Protocol, TypeVar

from lichen_lab.demo.core import chaos
from lichen_lab.demo.core.results import Results
from lichen_lab.demo.core.scenario import FLEET, Layout, Options, PreparedDemo
from lichen_lab.demo.core.screen import Screen
from lichen_lab.simulation.processes import embedded_broker, environment
from lichen_lab.simulation.processes.fleet_files import write_toml
from lichen_lab.simulation.processes.listener import Listener, listening
from lichen_lab.simulation.processes.process import ONE_THREAD, Child
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, Condition, Testbed, lichen
from runtime.fleet_view import FleetView
from runtime.settings.load import MqttSettings

_LOOK_S: Final = 0.25
CONSOLE: Final = "console"
_LOW: Final = 10
"""Niceness of side jobs."""
StageT_co = TypeVar("StageT_co", bound=PreparedDemo[Any], covariant=True)


class Onlooker(Listener, Protocol):
    """Counts or keeps what goes over the broker."""

    missed: int
    """Messages dropped for lack of room."""


class DemoFleet(Testbed, Generic[StageT_co]):
    """The processes of one demo run, and a view of their state."""

    def __init__(
        self, stage: StageT_co, options: Options, place: environment.Environment, screen: Screen
    ) -> None:
        super().__init__(stage.layout, env=ONE_THREAD, say=screen.say)
        self.stage = stage
        self.place = place
        self.options = options
        self.screen = screen
        self.view = FleetView(FLEET)
        self.pages = ""
        """The address of the console."""
        self.doing = "starting"
        """What is waited for; named when the time is over."""
        self.struck: chaos.Strike | None = None
        """The kill by ``--chaos``, if there was one."""
        self.changed = asyncio.Event()
        """The view has changed."""

    @property
    def layout(self) -> Layout:
        """Paths of the demo's files."""
        return self.stage.layout

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DemoFleet[StageT_co]"]:
        """Start broker, coordinator, agents and the observing link; all are stopped at the end."""
        async with self:
            # Never restarted: its retained messages would be lost, and a restart would hide a failure.
            await self.start(BROKER, embedded_broker.command(self.layout.port), restart="no")
            async with listening(self._mqtt(), f"demo-{FLEET}", self.view, self.changed.set):
                await self.start(COORDINATOR)
                await self._start_console()
                for name in self.stage.people:
                    await self.start_agent(name)
                self.screen.say(
                    f"one broker, one coordinator and {len(self.stage.people)} agents are running"
                )
                yield self

    async def stay(self) -> None:
        """Start again all processes that do not end by themselves, and show them until cancelled."""
        async with self:
            await self.start(BROKER)
            async with listening(self._mqtt(), f"demo-{FLEET}", self.view, self.changed.set):
                for name, child in list(self.children.items()):
                    if child.restart == "always":
                        await self.start(name)
                self.screen.say(f"the fleet runs until Ctrl-C; its pages: {self.pages}")
                while True:
                    await self.rest()

    async def _start_console(self) -> None:
        port = embedded_broker.free_port()
        self.pages = f"http://{embedded_broker.HOST}:{port}/"
        config, listen = str(self.layout.config(COORDINATOR)), f"{embedded_broker.HOST}:{port}"
        await self.start(CONSOLE, lichen("console", "serve", "--config", config, "--listen", listen))
        self.screen.say(f"the fleet's pages: {self.pages}")

    @asynccontextmanager
    async def onlooking(self, onlooker: Onlooker) -> AsyncIterator[None]:
        """Pass all messages at the broker to an onlooker; set how many it missed at the end."""
        async with listening(self._mqtt(), f"onlooker-{FLEET}", onlooker) as link:
            try:
                yield
            finally:
                onlooker.missed = link.counters.dropped

    def _mqtt(self) -> MqttSettings:
        return MqttSettings.model_validate(self.layout.mqtt("screen"))

    async def start_agent(self, name: str) -> None:
        """Start a training device."""
        started = time.monotonic()
        speed = self.options.speed

        def go_on() -> None:
            """Sensors do not wait for a restart: the recording goes on at the present time."""
            passed = min((time.monotonic() - started) * speed, self.stage.lengths_s[name])
            self.layout.start_s[name] = round(passed, 2)
            write_toml(self.layout.config(name), self.stage.agent(name))

        self.before_restart[name] = go_on
        await self.start(name)

    async def start_observer(self, name: str) -> Child:
        """Start a device that only observes, in its own environment; it is restarted if it dies."""
        return await self.start(
            name, self.place.command("agent", "run", "--config", str(self.layout.config(name)))
        )

    async def start_beside(self, name: str, module: str, job: Mapping[str, Any]) -> Child:
        """Start a program of low priority that reads its job from a file; it ends by itself."""
        file = self.layout.root / f"{name}-job.json"
        file.write_text(json.dumps(job))
        command = [sys.executable, "-P", "-m", module, str(file)]
        return await self.start(name, command, restart="no", nice=_LOW)

    def job(self, **more: Any) -> dict[str, Any]:
        """The job of a side job: task, unseen people's windows, seed, and ``more``."""
        task, unseen = self.stage.task.model_dump(mode="json"), str(self.layout.unseen)
        return {"task": task, "unseen": unseen, "seed": self.options.seed, **more}

    async def wait(self, what: str, done: Condition, timeout_s: float) -> None:
        """Draw the view until ``done``.

        Raises:
            Transient: the time is over, or a child failed for good; the message says what was waited for.
        """
        self.doing = what
        await self.until(what, done, timeout_s)

    async def rest(self) -> None:
        """Draw the view, and wait until it changes."""
        self.screen.show(self.view, self.stage.people)
        self.changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), _LOOK_S)

    def why(self) -> str:
        """What the round waits for, and where the logs are."""
        now = self.view.round
        words = now.waiting_for if now and now.waiting_for else "the broker has said nothing of it"
        return f"{words} (logs: {self.layout.root / 'logs'})"

    def learned(self) -> bool:
        """Whether all rounds are over and the last version exists."""
        now = self.view.round
        return now is not None and now.phase == "done" and now.version == self.options.rounds

    def announced(self) -> bool:
        """Whether the last version is exported and announced."""
        return self.view.model is not None and self.view.model.version == self.options.rounds

    async def learn(self, announced: Callable[[], bool], note: Callable[[], str] | None = None) -> None:
        """Run all rounds, with chaos in the middle if asked for; end when ``announced`` is true.

        Args:
            announced: whether the last version exists.
            note: progress of side jobs, for the screen.
        """
        striking: asyncio.Task[chaos.Strike] | None = None
        if self.options.chaos:
            striking = asyncio.create_task(chaos.strike(self, self.view, self.changed))

        def finished() -> bool:
            if striking is not None and striking.done():
                self.struck = striking.result()
            if note is not None:
                self.screen.note = note()
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

    def record_chaos(self, results: Results) -> None:
        """Record who was killed, and who runs again after the last round."""
        if self.struck is None:
            return
        name = self.struck.device
        results.struck, results.struck_round = name, self.struck.round
        results.returned = self.struck.returned(self.children.values())
        device = self.view.devices.get(name)
        results.reconnected = name in results.returned and device is not None and device.status == "online"

    async def stop_agents(self) -> None:
        """Stop the training devices, so that their stores can be read."""
        await self.stop(*self.stage.people)
