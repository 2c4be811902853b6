"""The further tasks of a fleet: which ones run, and what a new reading of ``coordinator.toml`` changes."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Coordinator, Service
from coordinator.fleet.task_reports import META, TaskReport, encode_reports, read_reports
from coordinator.tasks.changes import (
    WantedTask,
    changes,
    main_differs,
    read_wanted,
    require_same_place,
)
from coordinator.tasks.runner import LABEL, OpenTask, TaskRunner
from coordinator.tasks.withdrawal import settings_of_ended, withdraw
from protocol.errors import LichenError
from runtime.concurrency.signals import Signal
from runtime.metrics import MetricFamily
from runtime.process.daemon import Finished

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.5
_WITHDRAW_AGAIN_S: Final = 60.0
Reread = Callable[[], CoordinatorSettings]
Withdraw = Callable[[CoordinatorSettings], Awaitable[None]]


class FurtherTasks:
    """Runs the further tasks beside the main one; :meth:`run` is a service of the main task's coordinator.

    Args:
        main: the coordinator of the main task, whose tables hold the reports.
        settings: of the file.
        open_: opens the coordinator of a task.
        reread: reads the file again, at SIGHUP; None: it never changes.
        withdraw_: clears the announcements of a task at the broker.
    """

    def __init__(
        self,
        main: Coordinator,
        settings: CoordinatorSettings,
        open_: OpenTask,
        reread: Reread | None = None,
        withdraw_: Withdraw = withdraw,
    ) -> None:
        self._main = main
        self._clock = main.clock
        self._settings = settings
        self._open = open_
        self._reread = reread
        self._withdraw = withdraw_
        self._wanted: dict[str, WantedTask] = {}
        self.runners: dict[str, TaskRunner] = {}
        """By name; for tests and tools."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._ending_since: dict[str, float] = {}
        self._hangup = Signal()
        self._reported = Signal()
        self._saved = ""

    async def run(self) -> None:
        """Start the tasks of the file, and follow the file until cancelled; then call :meth:`close`."""
        before = await asyncio.to_thread(read_reports, self._main.storage.store)
        self._wanted = await asyncio.to_thread(read_wanted, self._settings)
        async with self._until_cancelled():
            for name in before:
                if name not in self._wanted:
                    self._begin_end(name)
            if self._ending:  # their links need certificates, and the broker's leave, for the last time
                await self._admit()
            for name, wanted in self._wanted.items():
                self._start(name, wanted)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._save_reports())
                group.create_task(self._follow_file())

    @asynccontextmanager
    async def _until_cancelled(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._hangup.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            await _cancel(*self._running.values(), *self._ending.values())

    async def close(self) -> None:
        """Close the coordinators of all tasks."""
        await asyncio.gather(*(runner.close() for runner in self.runners.values()))

    # ---- the file

    def reload(self) -> None:
        """Read the file again, as SIGHUP does."""
        self._hangup.set()

    async def _follow_file(self) -> None:
        while True:
            await self._hangup.wait()
            why = ""
            try:
                await self._apply()
            except LichenError as error:  # what runs goes on as it is
                why = str(error)
            if why:
                log.error("reload_refused", why=why)

    async def _apply(self) -> None:
        """Read the file, and do what it changes.

        Raises:
            Misconfigured: the file is wrong, or of another place; nothing was changed.
        """
        if self._reread is None:
            return
        settings = await asyncio.to_thread(self._reread)
        require_same_place(self._settings, settings)
        wanted = await asyncio.to_thread(read_wanted, settings)
        todo = changes(self._wanted, wanted)
        if main_differs(self._main.settings, settings):
            log.warning("main_task_unchanged", detail="its changed keys count from the next start")
        log.info("reloaded", start=todo.start, restart=todo.restart, end=todo.end)
        self._settings, self._wanted = settings, wanted
        for name in (*todo.restart, *todo.end):
            await self._stop(name)
        for name in todo.end:
            self._begin_end(name)
        for name in todo.start:
            await self._forget_end(name)
        await self._admit()
        for name in (*todo.start, *todo.restart):
            self._start(name, wanted[name])
        for runner in self.runners.values():
            runner.try_again()
        self._reported.set()

    async def _admit(self) -> None:
        """Let the broker admit the links of all tasks that run or end."""
        names = sorted({*self._wanted, *self._ending})
        try:
            await asyncio.to_thread(self._main.admission.serve_tasks, names)
        except (LichenError, OSError) as error:
            log.warning("broker_not_updated", why=str(error), tasks=names)

    # ---- one task

    def _start(self, name: str, wanted: WantedTask) -> None:
        runner = TaskRunner(wanted.settings, self._open, self._clock, self._reported)
        self.runners[name] = runner
        self._running[name] = asyncio.create_task(runner.run(), name=f"task {name}")

    async def _stop(self, name: str) -> None:
        """End a task's coordinator in order; its state stays on disk."""
        await _cancel(self._running.pop(name))
        await self.runners.pop(name).close()
        log.info("task_stopped", task=name)

    def _begin_end(self, name: str) -> None:
        self._ending_since[name] = self._clock.wall()
        self._ending[name] = asyncio.create_task(self._end(name), name=f"end of task {name}")

    async def _end(self, name: str) -> None:
        """Clear a task's announcements, and then the broker's leave for its links."""
        structlog.contextvars.bind_contextvars(**{LABEL: name})
        while True:
            try:
                await self._withdraw(settings_of_ended(self._settings, name))
                break
            except Exception as error:  # noqa: BLE001 - a fault of one task never ends the others
                log.warning("task_not_withdrawn", why=str(error), again_in_s=_WITHDRAW_AGAIN_S)
            await self._clock.sleep(_WITHDRAW_AGAIN_S)
        log.info("task_ended")
        self._ending.pop(name, None)
        self._ending_since.pop(name, None)
        self._reported.set()
        await self._admit()

    async def _forget_end(self, name: str) -> None:
        """A task that ended before begins again."""
        if (ending := self._ending.pop(name, None)) is not None:
            self._ending_since.pop(name, None)
            await _cancel(ending)

    # ---- what became of them

    def reports(self) -> dict[str, TaskReport]:
        """All tasks that run, wait or end."""
        found = {name: runner.report for name, runner in list(self.runners.items())}
        for name, since in list(self._ending_since.items()):
            found[name] = TaskReport(state="ending", since=since)
        return found

    async def _save_reports(self) -> None:
        """Keep the reports in the main task's tables, for the commands and the next start."""
        while True:
            text = encode_reports(self.reports())
            if text != self._saved:
                try:
                    await asyncio.to_thread(self._main.storage.store.put_meta, {META: text})
                    self._saved = text
                except LichenError as error:  # a full disk: a later report comes
                    log.warning("task_reports_not_written", why=str(error))
            await self._reported.wait()

    async def finish(self, main_exit: Service) -> None:
        """The end with ``exit_when_done``: of the main task, and then of all others.

        Raises:
            Finished: all rounds of all tasks are over.
        """
        with contextlib.suppress(Finished):
            await main_exit()
        while not all(runner.is_done for runner in self.runners.values()):
            await self._clock.sleep(_POLL_S)
        raise Finished("all rounds of all tasks are over")

    def metrics(self) -> Iterable[MetricFamily]:
        """The metrics of the further tasks, with the label ``task``; called from any thread."""
        reports = self.reports()
        up = [((name,), float(one.state in {"running", "done"})) for name, one in sorted(reports.items())]
        yield MetricFamily("lichen_task_running", "1: the further task runs", "gauge", up, (LABEL,))
        for runner in list(self.runners.values()):
            yield from runner.metrics()


async def _cancel(*running: "asyncio.Task[None]") -> None:
    for one in running:
        one.cancel()
    if running:
        await asyncio.wait(running)


def services_of(main: Coordinator, tasks: FurtherTasks) -> dict[str, Service]:
    """What the main task's coordinator runs besides, or in another way."""
    found: dict[str, Service] = {"tasks": tasks.run}
    if (exit_ := main.always.get("exit")) is not None:
        found["exit"] = partial(tasks.finish, exit_)
    return found
