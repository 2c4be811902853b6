"""The demo's course: start everything, watch the rounds, deploy, compare, stop everything.

Every wait has a bound, and says what it waited for when the bound is reached.
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
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, Condition, Testbed
from runtime.fleet_view import FleetView
from runtime.settings.load import MqttSettings

_LOOK_S: Final = 0.25
_LOW: Final = 10
"""Niceness of what runs beside the fleet."""
StageT_co = TypeVar("StageT_co", bound=PreparedDemo[Any], covariant=True)


class Onlooker(Listener, Protocol):
    """Counts or keeps what goes over the broker."""

    missed: int
    """Messages that there was no room for."""


class DemoFleet(Testbed, Generic[StageT_co]):
    """The processes of one demo run, and the picture of them."""

    def __init__(
        self, stage: StageT_co, options: Options, place: environment.Environment, screen: Screen
    ) -> None:
        super().__init__(stage.layout, env=ONE_THREAD, say=screen.say)
        self.stage = stage
        self.place = place
        self.options = options
        self.screen = screen
        self.view = FleetView(FLEET)
        self.doing = "starting"
        """What is waited for: said when the time is over."""
        self.struck: chaos.Strike | None = None
        """What chaos killed."""
        self.changed = asyncio.Event()
        """The picture has changed."""

    @property
    def layout(self) -> Layout:
        """Where things lie."""
        return self.stage.layout

    @asynccontextmanager
    async def running(self) -> AsyncIterator["DemoFleet[StageT_co]"]:
        """Broker, coordinator and agents, and the watching link; all are stopped on the way out."""
        async with self:
            # Not kept: its retained messages die with it, so that a restart would hide a failure.
            await self.start(BROKER, embedded_broker.command(self.layout.port), restart="no")
            async with listening(self._mqtt(), f"demo-{FLEET}", self.view, self.changed.set):
                await self.start(COORDINATOR)
                for name in self.stage.people:
                    await self.start_agent(name)
                self.screen.say(
                    f"one broker, one coordinator and {len(self.stage.people)} agents are running"
                )
                yield self

    @asynccontextmanager
    async def onlooking(self, onlooker: Onlooker) -> AsyncIterator[None]:
        """Pass what goes over the broker to an onlooker; in the end it knows how many messages it missed."""
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
            """A restarted device's sensors have not waited: its recording goes on where time is now."""
            passed = min((time.monotonic() - started) * speed, self.stage.lengths_s[name])
            self.layout.start_s[name] = round(passed, 2)
            write_toml(self.layout.config(name), self.stage.agent(name))

        self.before_restart[name] = go_on
        await self.start(name)

    async def start_observer(self, name: str) -> Child:
        """Start a device that only observes, in its own environment; it is started again when it dies."""
        return await self.start(
            name, self.place.command("agent", "run", "--config", str(self.layout.config(name)))
        )

    async def start_beside(self, name: str, module: str, job: Mapping[str, Any]) -> Child:
        """Start a computation of low priority that reads its job from a file; it ends by itself."""
        file = self.layout.root / f"{name}-job.json"
        file.write_text(json.dumps(job))
        command = [sys.executable, "-P", "-m", module, str(file)]
        return await self.start(name, command, restart="no", nice=_LOW)

    def job(self, **more: Any) -> dict[str, Any]:
        """What every side job is told, and ``more``: the task, the unseen people's windows, the seed."""
        task, unseen = self.stage.task.model_dump(mode="json"), str(self.layout.unseen)
        return {"task": task, "unseen": unseen, "seed": self.options.seed, **more}

    async def wait(self, what: str, done: Condition, timeout_s: float) -> None:
        """Draw the picture until ``done``.

        Raises:
            Transient: the time is over, or a child failed for good; the message says what was waited for.
        """
        self.doing = what
        await self.until(what, done, timeout_s)

    async def rest(self) -> None:
        """Draw the picture, and wait until it changes."""
        self.screen.show(self.view, self.stage.people)
        self.changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), _LOOK_S)

    def why(self) -> str:
        """What the round waits for, and where to read more."""
        told = self.view.round
        words = told.waiting_for if told and told.waiting_for else "the broker has said nothing of it"
        return f"{words} (logs: {self.layout.root / 'logs'})"

    def learned(self) -> bool:
        """Whether all rounds are over, and the last version is made."""
        now = self.view.round
        return now is not None and now.phase == "done" and now.version == self.options.rounds

    def announced(self) -> bool:
        """Whether the last version is exported and announced."""
        return self.view.model is not None and self.view.model.version == self.options.rounds

    async def learn(self, announced: Callable[[], bool], note: Callable[[], str] | None = None) -> None:
        """All rounds, and in the middle of them, on demand, the chaos; ends when ``announced`` says so.

        Args:
            announced: whether the last version is there.
            note: what happens beside the rounds, for the screen.
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

    def tell_chaos(self, story: Results) -> None:
        """Who was killed, and whether they are back now, after the last round."""
        if self.struck is None:
            return
        name = self.struck.device
        story.struck, story.struck_round = name, self.struck.round
        story.returned = self.struck.returned(self.children.values())
        seen = self.view.devices.get(name)
        story.reconnected = name in story.returned and seen is not None and seen.status == "online"

    async def stop_agents(self) -> None:
        """The training devices' work is done; their stores can be read."""
        await self.stop(*self.stage.people)
