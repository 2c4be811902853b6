"""The sites of further tasks: opened at the first look, closed when nobody looks any more."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from console.tasks.task_list import TaskList
from console.tasks.task_site import TaskSite
from console.views.device import TasksOfDevice
from protocol.errors import Transient

log = structlog.get_logger(__name__)
IDLE_S: Final = 60.0
"""Without a viewer of events, and without a look for so long, a task is not read any more."""
_TURN_S: Final = 2.0


class _OpenSite:
    """A site that is read; made on the event loop."""

    def __init__(self, site: TaskSite) -> None:
        self.site = site
        self.looked = time.monotonic()
        self.reading = asyncio.ensure_future(self._serve())
        self.first = asyncio.Event()

    async def _serve(self) -> None:
        try:
            await self.site.watch.read(marked=True)
            self.first.set()
            async with asyncio.TaskGroup() as group:
                for run in self.site.services.values():
                    group.create_task(_service(run))
        finally:
            self.first.set()

    def is_idle(self, now: float) -> bool:
        """Whether nobody looks, or what reads for it has failed."""
        return self.reading.done() or (self.site.events.viewers == 0 and now - self.looked > IDLE_S)

    async def end(self) -> None:
        self.reading.cancel()
        await asyncio.wait([self.reading])
        if not self.reading.cancelled() and (error := self.reading.exception()) is not None:
            log.error("task_not_read", task=self.site.settings.further_task, error=repr(error)[:1000])
        self.site.events.close()
        await asyncio.to_thread(self.site.close)  # it waits for threads that still read


async def _service(run: Callable[[], Awaitable[None]]) -> None:
    await run()


class OpenSites:
    """One site for each further task that somebody looks at.

    Args:
        tasks: of the fleet.
        tasks_of: finds the tasks that a device takes part in.
    """

    def __init__(self, tasks: TaskList, tasks_of: TasksOfDevice) -> None:
        self._tasks = tasks
        self._tasks_of = tasks_of
        self._open: dict[str, _OpenSite] = {}

    @property
    def sites(self) -> Mapping[str, TaskSite]:
        """Those that are read now, by task."""
        return {name: one.site for name, one in self._open.items()}

    async def get(self, name: str) -> TaskSite:
        """The site of a task, read at least once.

        Raises:
            HTTPException: 404: there is no such task.
            Transient: its tables are not as expected.
        """
        settings = self._tasks.settings_of(name)
        one = self._open.get(name)
        if one is not None and (one.site.settings != settings or one.reading.done()):
            del self._open[name]
            await one.end()
            one = self._open.get(name)
        if one is None:
            one = self._open[name] = _OpenSite(TaskSite(settings, self._tasks_of))
        one.looked = time.monotonic()
        await one.first.wait()
        if one.reading.done():
            raise Transient(f"the tables of task {name} cannot be read; the log of lichen console says why")
        return one.site

    async def run(self) -> None:
        """Close sites that are idle, gone or of other settings, for ever; at the end all."""
        try:
            while True:
                await asyncio.sleep(_TURN_S)
                now, further = time.monotonic(), self._tasks.further
                for name, one in list(self._open.items()):
                    is_gone = further.get(name) != one.site.settings
                    if (is_gone or one.is_idle(now)) and self._open.get(name) is one:
                        del self._open[name]
                        await one.end()
        finally:
            for one in self._open.values():
                await one.end()
            self._open.clear()
