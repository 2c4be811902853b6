"""The further tasks of a device: each has parts of its own, and a failure of one ends no other.

A task is built again after an error, later each time. Its parts are those of
:func:`edge_agent.wiring.build`, for the settings of :meth:`AgentSettings.for_task`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from edge_agent.agent import Agent
from edge_agent.sources.shared import SourceTap
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.pacing import backoff_s
from runtime.waits import StatusPart, Wait

_log = structlog.get_logger(__name__)
_FIRST_BACKOFF_S: Final = 5.0
_LAST_BACKOFF_S: Final = 600.0
_SHORT: Final = ("task", "learning", "windows", "model", "version", "inference", "rounds_trained")
"""Of a task's status, shown with the device's; ``--task`` shows all."""


class FurtherTask:
    """One service.

    Args:
        name: of the table ``[[tasks]]``.
        opened: makes its parts. Raises Misconfigured, Transient.
        clock: paces attempts.
    """

    def __init__(self, name: str, opened: Callable[[str], Agent], clock: Clock) -> None:
        self.name = name
        self.agent: Agent | None = None
        """Its parts, while they run."""
        self.why = "not started"
        self._opened = opened
        self._clock = clock
        self._since = clock.wall()
        self._until: float | None = None

    async def run(self) -> None:
        """Run the task for ever, and after an error again."""
        failures = 0
        while True:
            began = self._clock.now()
            try:
                await self._live()
            except Exception as error:  # noqa: BLE001 - of this task; the others and the device go on
                if self._clock.now() - began > _LAST_BACKOFF_S:
                    failures = 0
                pause = backoff_s(_FIRST_BACKOFF_S, _LAST_BACKOFF_S, failures)
                failures += 1
                self.why = f"it failed and is started again: {_words(error)}"
                self._since, self._until = self._clock.wall(), self._clock.wall() + pause
                known = isinstance(error, LichenError)
                _log.error(
                    "task_failed", task=self.name, error=_words(error), again_in_s=pause,
                    exc_info=None if known else error,
                )  # fmt: skip
                await self._clock.sleep(pause)
                self._until = None

    async def _live(self) -> None:
        """From opening the task's files to its end by an error."""
        agent = await asyncio.to_thread(self._opened, self.name)
        self.agent, self.why = agent, "runs"
        try:
            await agent.start()
            async with asyncio.TaskGroup() as group:
                for name, service in agent.services().items():
                    group.create_task(_service(service), name=f"{self.name}: {name}")
        finally:
            self.agent = None
            for source in agent.sources:
                if isinstance(source, SourceTap):
                    source.release()
            agent.close()

    def status(self) -> dict[str, Any]:
        """In short."""
        if self.agent is None:
            return {"state": self.why}
        found = self.agent.status()
        return {"state": self.why, **{key: found[key] for key in _SHORT if key in found}}

    def waits(self) -> Iterator[Wait]:
        """Its waits, which name the task; the device's own are left out."""
        if self.agent is None:
            then = "it is started again" if self._until is not None else "it starts"
            yield Wait("task", f"task {self.name}: {self.why}", self._since, self._until, then)
            return
        for wait in self.agent.report.waits():
            if wait.what != "broker":
                yield replace(wait, why=f"task {self.name}: {wait.why}")


class DeviceTasks(StatusPart):
    """All further tasks of the device.

    Args:
        tasks: one for each table.
        route: a service that hands messages to the tasks.
    """

    def __init__(self, tasks: Sequence[FurtherTask], route: Callable[[], Awaitable[None]]) -> None:
        self.tasks = tasks
        self._route = route

    def services(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Name -> run."""
        return {"messages": self._route, **{f"task[{task.name}]": task.run for task in self.tasks}}

    async def stop(self) -> None:
        """Send the last states, while the link is up."""
        running = [task.agent for task in self.tasks if task.agent is not None]
        await asyncio.gather(*(agent.stop() for agent in running), return_exceptions=True)

    def hanging(self, patience_s: float) -> str:
        """The work that hangs longer; empty: none does."""
        running = ((task.name, task.agent) for task in self.tasks if task.agent is not None)
        found = ((name, agent.progress.hanging(patience_s)) for name, agent in running)
        return ", ".join(f"task {name}: {words}" for name, words in found if words)

    def status(self) -> dict[str, Any]:
        """Each task in short."""
        return {"tasks": {task.name: task.status() for task in self.tasks}}

    def waits(self) -> Iterator[Wait]:
        """The waits of all."""
        for task in self.tasks:
            yield from task.waits()


async def _service(run: Callable[[], Awaitable[None]]) -> None:
    await run()


def _words(error: BaseException) -> str:
    """The first error of a group, with its kind unless it speaks for itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, LichenError) else f"{type(error).__name__}: {error}"
