"""A main task and further ones in one process, on fake links."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from coordinator.app import open_coordinator
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Coordinator, Service
from coordinator.fleet.task_reports import TaskReport, read_reports
from coordinator.task import load_task
from coordinator.tasks.fleet import FurtherTasks, services_of
from protocol.errors import Misconfigured
from protocol.messages import State, encode
from protocol.topics import Kind, device_topic
from runtime.mqtt.link import Message
from tests.support.coordinator.bench import FakeLink
from tests.support.coordinator.fake import TinyJobs, TinyServer, settings_for, tiny_task
from tests.support.services import beside

TASK = """
name = "tiny"
method = "qqr"
labels = ["a", "b"]
[window]
length_s = 1.0
[[modalities]]
name = "acc"
channels = 3
rate_hz = 10
[rounds]
count = 2
"""


class EndingLink(FakeLink):
    ended = False

    async def run(self, **options: object) -> None:
        try:
            await super().run(**options)
        finally:
            self.ended = True


class Fleet:
    """A main task and further ones, on fake links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = settings_for(folder, 1)
        self.withdrawn: list[str] = []
        self.refused = ""
        self.links: dict[str, EndingLink] = {}
        self.services: dict[str, dict[str, Service]] = {}
        self.main: Coordinator
        self.tasks: FurtherTasks

    def write(self, *names: str, task: str = TASK, **keys: object) -> CoordinatorSettings:
        for name in names:
            (self.folder / f"{name}.toml").write_text(task, encoding="utf-8")
        listed = [{"name": name, "task": self.folder / f"{name}.toml"} for name in names]
        self.settings = settings_for(self.folder, 1, tasks=listed, **keys)
        return self.settings

    def reread(self) -> CoordinatorSettings:
        if self.refused:
            raise Misconfigured(self.refused)
        return self.settings

    async def withdraw(self, settings: CoordinatorSettings) -> None:
        self.withdrawn.append(settings.fleet)

    @asynccontextmanager
    async def open_task(self, settings: CoordinatorSettings) -> AsyncIterator[Coordinator]:
        await asyncio.to_thread(load_task, settings)  # that of the file is checked; the tiny one runs
        async with self.opened(settings, in_threads=True) as coordinator:
            yield coordinator

    @asynccontextmanager
    async def opened(
        self, settings: CoordinatorSettings, *, in_threads: bool = False
    ) -> AsyncIterator[Coordinator]:
        link = self.links[settings.fleet] = EndingLink()
        task, rng = tiny_task(), random.Random("bench")
        async with open_coordinator(
            settings, task, TinyServer(), jobs=TinyJobs(), link=link, rng=rng, in_threads=in_threads
        ) as coordinator:
            more = self.services.get(settings.fleet, {})
            yield replace(coordinator, always={**coordinator.always, **more})

    def coordinator(self, name: str) -> Coordinator:
        """The running coordinator of a further task."""
        found = self.tasks.runners[name].coordinator
        assert found is not None
        return found

    @asynccontextmanager
    async def run(self) -> AsyncIterator["Fleet"]:
        async with self.opened(self.settings) as main:
            await main.driver.open()
            self.main = main
            self.tasks = FurtherTasks(main, self.settings, self.open_task, self.reread, self.withdraw)
            services = {**main.services(), **services_of(main, self.tasks)}
            try:
                async with beside(*services.values()):
                    yield self
            finally:
                await self.tasks.close()

    async def until(self, **states: str) -> None:
        """Until the reports that commands read are these."""
        async with asyncio.timeout(30):
            while {n: one.state for n, one in self.reports().items()} != states:  # noqa: ASYNC110 - any part
                await asyncio.sleep(0.01)

    def reports(self) -> dict[str, TaskReport]:
        return read_reports(self.main.storage.store)


async def online(coordinator: Coordinator, device: str) -> None:
    state = encode(State(status="online", device=device, roles=("train",), modalities={}))
    topic = device_topic(coordinator.settings.fleet, device, Kind.STATE)
    handled = asyncio.Event()
    await coordinator.dispatcher.dispatch(Message(topic, state, False, handled.set))
    async with asyncio.timeout(10):
        await handled.wait()
