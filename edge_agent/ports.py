"""What services need of parts that are made after them, or that a simulation replaces."""

from pathlib import Path
from typing import Protocol

from protocol.rollout import Hindrance, TrialReport


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


class Trainer(Protocol):
    """The part of ``runtime.process.worker.Worker`` that the learner uses."""

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Run one job. Raises WorkerFailed."""

    async def close(self) -> None:
        """Stop the running job."""
