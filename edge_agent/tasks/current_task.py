"""The task of this device, and its workspace: windows of streams, or a knowledge graph."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.sources.base import Source
from edge_agent.sources.task_match import doubts
from edge_agent.tasks.config_warnings import warnings
from edge_agent.tasks.consent import CONSENT_FILE, ConsentRecord
from edge_agent.tasks.privacy_floors import Unprotected
from edge_agent.tasks.profile import unknown_modalities
from edge_agent.tasks.roles import learning_role
from edge_agent.tasks.task_store import TASK_FILE, check_for, require_packages, unused
from edge_agent.tasks.workspace import Readiness, TrainingData
from models.contract import Profile
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.messages import encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.storage.files import remove, write_atomic
from runtime.waits import StatusPart, Wait

_log = structlog.get_logger(__name__)


class KeepsWorkspaces(Protocol):
    """Creates and owns the workspace of a task: from streams, or from a knowledge graph."""

    async def use(self, task: Task) -> TrainingData:
        """Use this task from now on."""

    async def leave(self) -> None:
        """Stop: the present task is of another kind."""


@dataclass(eq=False, repr=False)
class CurrentTask(StatusPart):
    """Owns the workspace of the present task.

    Args:
        settings: of the agent.
        sources: opened.
        windows: owns the workspace of a task on windows.
        graph: owns the workspace of a task on knowledge graphs.
        changed: set when the device has something to report.
        clock: gives the time since when there is no task.
        task_mismatch: from the last run of the agent.
    """

    settings: AgentSettings
    sources: list[Source]
    windows: KeepsWorkspaces
    graph: KeepsWorkspaces
    changed: Signal
    clock: Clock
    task_mismatch: str = ""
    """Why this device cannot do the last announced task; empty if it can."""

    def __post_init__(self) -> None:
        self._started = self.clock.wall()
        self._consent = ConsentRecord(self.settings.state_dir / CONSENT_FILE)
        self.withheld = ""
        """Why the present task gets nothing: it protects less now; empty: it does."""
        self.spent = ""
        """Why the present task gets no further update: the account of privacy is full; empty: it does."""
        self.workspace: TrainingData | None = None
        """Of the present task; None while none is known."""

    def readiness(self) -> Readiness:
        """The available training data."""
        return Readiness(Profile(()), 0, {}) if self.workspace is None else self.workspace.readiness()

    async def start(self, task: Task | None) -> None:
        """Start with the known task, if any."""
        for words in warnings(self.settings, task, self.sources):
            _log.warning("config_doubtful", why=words)
        if task is not None:
            self.withheld = await asyncio.to_thread(self._consent.begin, task)
            await self.use(task)

    async def accept(self, announcement: TaskAnnouncement) -> Task | None:
        """Check an announced task, and store it for the next start.

        Returns:
            The task, if it differs from the present one; then :meth:`use` it.

        Raises:
            Refused: this device cannot do it, or it was damaged on the way; the present one stays.
        """
        work, settings = self.workspace, self.settings
        try:
            task = announcement.read()
            if work is not None and work.task == task:
                await self._same(task)
                return None
            await self._require(task)
        except (Refused, Misconfigured) as error:
            if isinstance(error, Refused) and error.reason is Reason.MALFORMED:
                raise
            self.refuse(why := error.words if isinstance(error, Refused) else str(error))
            raise Refused(Reason.UNKNOWN_TASK, why) from None
        self.task_mismatch = self.withheld = ""
        for words in () if settings.tasks else unused(task, self.sources, settings.graph):
            _log.warning("not_used", why=words)
        doubtful = await asyncio.to_thread(doubts, task, self.sources)
        for words in [*doubtful, *unknown_modalities(task, settings.learn)]:
            _log.warning("config_doubtful", why=words)
        try:
            await asyncio.to_thread(self._consent.taken, task)
            await asyncio.to_thread(write_atomic, settings.state_dir / TASK_FILE, encode(announcement))
        except (Transient, Misconfigured) as error:  # it is used until the next start
            _log.error("task_not_saved", why=str(error))
        return task

    async def _require(self, task: Task) -> None:
        """Check that this device can and may do a task.

        Raises:
            Misconfigured: it cannot, or may not.
        """
        await asyncio.to_thread(require_packages, task, self.settings)
        try:
            check_for(task, self.sources, self.settings)
            if learning_role(self.settings, task):  # else it sends nothing
                await asyncio.to_thread(self._consent.require, task)
        except Unprotected as error:
            self.withheld = str(error)
            try:
                await asyncio.to_thread(self._consent.withhold, task.name, str(error))
            except (Transient, Misconfigured) as disk:  # it counts until the next start
                _log.error("consent_not_saved", why=str(disk))
            raise

    async def _same(self, task: Task) -> None:
        """The present task is announced again, perhaps after another one that this device refused."""
        if self.task_mismatch:
            self.refuse("")
        if self.withheld:
            self.withheld = ""
            await asyncio.to_thread(self._consent.taken, task)

    async def use(self, task: Task) -> None:
        """Collect for this task from now on."""
        self.spend("")
        keeper, other = (self.windows, self.graph) if task.graph is None else (self.graph, self.windows)
        if self.workspace is not None and (self.workspace.task.graph is None) != (task.graph is None):
            self.workspace = None
        await other.leave()
        self.workspace = await keeper.use(task)

    async def end(self) -> None:
        """The announcement was withdrawn: wait for another one. Stored windows stay."""
        await self.windows.leave()
        await self.graph.leave()
        self.workspace, self.task_mismatch = None, ""
        self._started = self.clock.wall()
        await asyncio.to_thread(remove, self.settings.state_dir / TASK_FILE)
        self.changed.set()

    def refuse(self, words: str) -> None:
        """Set the reason why this device does not do the last announced task; empty: it does."""
        self.task_mismatch = words
        self.changed.set()

    def spend(self, words: str) -> None:
        """Set the reason why the present task gets no further update; empty: it does."""
        if words != self.spent:
            self.spent = words
            self.changed.set()
            if words:
                _log.warning("privacy_spent", why=words)

    def close(self) -> None:
        """Close the workspace, after all services have ended."""
        if self.workspace is not None:
            self.workspace.close()

    def status(self) -> dict[str, Any]:
        """The name of the task."""
        return {"task": None if self.workspace is None else self.workspace.task.name}

    def waits(self) -> Iterator[Wait]:
        """The wait for a task that this device can do, while it has none."""
        work = self.workspace
        if self.task_mismatch:
            previous = "" if work is None else f" (the device stays with task {work.task.name!r})"
            words = f"this device cannot do the announced task: {self.task_mismatch}{previous}"
        elif work is None:
            words = "no task is announced, and no task_file is set"
        else:
            return
        yield Wait("task", words, self._started, None, "until a coordinator announces one")
