"""One further task of a fleet, in the process of the main task: it runs and fails by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final

import structlog

from coordinator.app import open_coordinator
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Coordinator, Service
from coordinator.fleet.task_reports import MAX_WHY, State, TaskReport
from coordinator.task import load_task
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.metrics import MetricFamily
from runtime.process.daemon import Finished, each_error
from runtime.process.worker_turns import WorkerTurns

log = structlog.get_logger(__name__)

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 300.0
_LASTING_S: Final = 600.0
"""A task that ran for this long begins again with the first pause."""
LABEL: Final = "task"
"""Of the metrics of further tasks."""
_OF_THE_FLEET: Final = ("lichen_disk_", "lichen_broker_", "lichen_certificates_", "lichen_enrolments_")
"""Metrics of process and fleet, which the main task has."""
OpenTask = Callable[[CoordinatorSettings], AbstractAsyncContextManager[Coordinator]]
"""Reads the task of some settings, and opens its coordinator."""


@asynccontextmanager
async def open_task(
    turns: WorkerTurns, clock: Clock, settings: CoordinatorSettings
) -> AsyncIterator[Coordinator]:
    """Read the task and open its coordinator, beside others on this event loop.

    Args:
        turns: of the child processes of all tasks.
        clock: the time.
        settings: of the task.

    Raises:
        Misconfigured: the task, the method's options or the state folder.
        Transient: the disk is full.
    """
    task, spec = await asyncio.to_thread(load_task, settings)
    opening = open_coordinator(settings, task, spec.server(), clock=clock, turns=turns, in_threads=True)
    async with opening as coordinator:
        yield coordinator


class TaskRunner:
    """The runner of one further task.

    Args:
        settings: of that task.
        open_: opens its coordinator.
        clock: the time.
        reported: set when :attr:`report` has changed.
    """

    def __init__(
        self, settings: CoordinatorSettings, open_: OpenTask, clock: Clock, reported: Signal
    ) -> None:
        self.settings = settings
        self.report = TaskReport(state="starting", since=clock.wall())
        self.coordinator: Coordinator | None = None
        """While it runs."""
        self._open = open_
        self._clock = clock
        self._reported = reported
        self._stack = AsyncExitStack()
        self._closing: asyncio.Future[None] | None = None
        self._again = Signal()

    @property
    def is_done(self) -> bool:
        """Whether its rounds are over, and ``exit_when_done`` need not wait for it."""
        return self.report.state == "done"

    def try_again(self) -> None:
        """Do not wait any longer after a failure."""
        self._again.set()

    async def run(self) -> None:
        """Run the task until cancelled; :meth:`close` closes it afterwards."""
        structlog.contextvars.bind_contextvars(**{LABEL: self.settings.further_task})
        pause_s = FIRST_PAUSE_S
        while True:
            began = self._clock.now()
            try:
                await self._run_once()
            except Exception as error:  # noqa: BLE001 - a fault of one task never ends the others
                why = _words(error)
            else:
                why = "all its services have ended"
            if self._clock.now() - began > _LASTING_S:
                pause_s = FIRST_PAUSE_S
            log.error("task_failed", why=why, again_in_s=pause_s)
            self._say("failed", why, again=self._clock.wall() + pause_s)
            await self.close()
            await self._again.wait(pause_s, self._clock)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _run_once(self) -> None:
        self._again.clear()
        self._say("starting")
        coordinator = await self._stack.enter_async_context(self._open(self.settings))
        self._stack.push_async_callback(_goodbye, coordinator)
        await coordinator.driver.open()
        services = await asyncio.to_thread(coordinator.services)
        if (exit_ := services.get("exit")) is not None:
            services["exit"] = partial(self._until_done, exit_)
        self.coordinator = coordinator
        self._say("running")
        log.info("task_running")
        async with asyncio.TaskGroup() as group:
            for name, run in services.items():
                group.create_task(_named(name, run), name=name)

    async def _until_done(self, run: Service) -> None:
        try:
            await run()
        except Finished:
            self._say("done")

    def _say(self, state: State, why: str = "", again: float | None = None) -> None:
        self.report = TaskReport(state=state, why=why[:MAX_WHY], since=self._clock.wall(), again=again)
        self._reported.set()

    async def close(self) -> None:
        """Close its coordinator, if it is open. A cancelled call goes on by itself."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)
        self._closing = None

    async def _close(self) -> None:
        self.coordinator = None
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        except (LichenError, OSError) as error:
            log.warning("task_not_closed_in_order", task=self.settings.further_task, why=str(error))

    def metrics(self) -> Iterator[MetricFamily]:
        """The metrics of its parts, with its name as a label; called from any thread."""
        name, coordinator = self.settings.further_task or "", self.coordinator
        for part in () if coordinator is None else coordinator.measured:
            families: Iterable[MetricFamily] = ()
            with contextlib.suppress(Exception):  # it is being closed in another thread
                families = list(part.metrics())
            for one in families:
                if not one.name.startswith(_OF_THE_FLEET):
                    values = [((*labels, name), value) for labels, value in one.values]
                    yield MetricFamily(one.name, one.words, one.kind, values, (*one.labels, LABEL))


async def _named(name: str, run: Service) -> None:
    try:
        await run()
    except Exception as error:
        error.add_note(f"in service {name!r}")
        raise


async def _goodbye(coordinator: Coordinator) -> None:
    with contextlib.suppress(LichenError):  # a full disk: the counters of traffic are a little low
        await coordinator.goodbye()


def _words(error: BaseException) -> str:
    """An error, or the different ones of a group."""
    found: dict[str, None] = {}
    for one in each_error(error):
        if isinstance(one, LichenError):
            found[str(one)] = None
        else:
            log.error("failed", exc_info=one)
            found[f"{type(one).__name__}: {one}"] = None
    return "; ".join(found)
