"""What services need of parts that are made after them, or that another part may stand for."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from models.data.streams.windows import Windows
from protocol.rollout import Hindrance, TrialReport
from protocol.tasks.task import Task
from runtime.mqtt.running_link import RunningLink
from runtime.waits import StatusPart


class TaskLink(RunningLink, Protocol):
    """A task's link to its coordinator: ``runtime.mqtt.link.Link``, or a view of the one that tasks share."""

    @property
    def resumed(self) -> bool:
        """Whether the broker still had our session."""

    def reconnect(self, because: str) -> None:
        """Get retained messages again; a connection of one task alone is ended for it."""


class ReportsModels(Protocol):
    """What the state message reports about models."""

    @property
    def digest(self) -> str | None:
        """Of the active model's bundle."""

    @property
    def trial(self) -> TrialReport | None:
        """State of the present trial, or of the last one."""

    @property
    def blocked(self) -> Hindrance | None:
        """Why the device does not run the announced model."""


class OtherTasks(StatusPart, Protocol):
    """The further tasks of a device, beside its main one."""

    def services(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Name -> run."""

    async def stop(self) -> None:
        """Send the last states while the link is up."""

    def hanging(self, patience_s: float) -> str:
        """The work that hangs longer than ``patience_s``; empty: none does."""


class MakesFeatures(Protocol):
    """Runs the backbones of a task."""

    def use(self, task: Task, modalities: Collection[str]) -> None:
        """The task, and the modalities that are collected, from now on."""

    def leave(self) -> None:
        """There is no task on windows any more: what it needed may be removed."""

    async def features(self, task: Task, windows: Windows) -> Windows:
        """Windows as the task is learned, of windows as they were cut.

        A modality whose backbone cannot be run now is missing.
        """


class RefusesBackbones(Protocol):
    """Knows backbones that can never be run here."""

    @property
    def refusal(self) -> str:
        """Why this device cannot do the task for them; empty if it can."""


class Trainer(Protocol):
    """The part of ``runtime.process.worker.Worker`` that the learner uses."""

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Run one job. Raises WorkerFailed."""

    async def close(self) -> None:
        """Stop the running job."""
