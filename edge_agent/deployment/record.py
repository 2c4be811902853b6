"""``current.json``: what runs on this device, what is on trial, what was tried and failed.

Written whole and atomically: each step of a rollout is one write. ``bundles`` reads it. Pure.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from edge_agent.deployment.health import figures
from edge_agent.deployment.trial_metrics import TrialMetrics
from protocol.base import Count, Digest, Name, Seconds, Wire
from protocol.messages import ModelPointer
from protocol.rollout import Trial, TrialReport
from runtime.text import one_line

MAX_BAD: Final = 32
MAX_WHY: Final = 240


class InstalledBundle(Wire):
    """A bundle whose folder is on this disk."""

    task: Name
    version: Count
    digest: Digest
    serial: Count = 0
    """Of the decision that pointed to it."""
    epoch: Count | None = None
    """``edge_agent.trust.trusted_metadata.TrustedMetadata.epoch`` when it was taken; None: unsigned."""


class TrialBundle(InstalledBundle):
    """A bundle that must show its health."""

    rules: Trial
    rollout: bool = False
    """The rules came with the pointer: a rollout waits for what follows from them."""
    starts: Count = 0
    """Of the agent since it is on trial, without those that were followed by an orderly end."""
    ran_s: Seconds = 0.0
    """Since its first window, over all starts."""
    measures: TrialMetrics


class RejectedBundle(Wire):
    """A bundle that was rolled back; it is tried again when a later decision points to it."""

    digest: Digest
    serial: Count
    why: Annotated[str, Field(max_length=MAX_WHY)] = ""


class DeploymentRecord(Wire):
    """The file."""

    format: Literal[2] = 2
    serial: Count = 0
    """Of the last decision that this device went by: earlier ones are out of date."""
    epoch: Count | None = None
    """Whose decision that was (``Trusted.epoch``); None: no signature was asked for, or an
    older release wrote it."""
    committed: InstalledBundle | None = None
    before: InstalledBundle | None = None
    """Loaded where the committed one is damaged."""
    trial: TrialBundle | None = None
    """Also what it is while the agent is starting: it is tried again."""
    bad: Annotated[tuple[RejectedBundle, ...], Field(max_length=MAX_BAD)] = ()
    """The latest last."""
    report: TrialReport | None = None
    """Of what was pointed to last, unless it is on trial."""

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the bundles that are needed."""
        return tuple(kept.digest for kept in (self.trial, self.committed, self.before) if kept is not None)

    def failed(self, digest: str, serial: int) -> RejectedBundle | None:
        """Whether this bundle was rolled back, and no later decision points to it."""
        return next((b for b in self.bad if b.digest == digest and b.serial >= serial), None)


def kept_of(pointer: ModelPointer, epoch: int | None) -> InstalledBundle:
    """What a pointer points to; ``epoch``: as in :class:`InstalledBundle`."""
    return InstalledBundle(
        task=pointer.task,
        version=pointer.version,
        digest=pointer.bundle.digest,
        serial=pointer.serial,
        epoch=epoch,
    )


def reported(book: DeploymentRecord) -> TrialReport | None:
    """For ``up/state``; None: it was pointed to nothing yet."""
    trial = book.trial
    if trial is None:
        return book.report
    return report_of(trial, "trial", measures=trial.measures)


def report_of(
    kept: InstalledBundle,
    phase: Literal["trial", "committed", "rolled_back", "refused"],
    why: str = "",
    measures: TrialMetrics | None = None,
) -> TrialReport:
    """What the coordinator hears of a bundle."""
    return TrialReport(
        version=kept.version,
        bundle=kept.digest,
        serial=kept.serial,
        phase=phase,
        why=shortened(why),
        measures={} if measures is None else figures(measures),
    )


def shortened(words: str) -> str:
    """One line of a state message, of at most ``MAX_WHY`` characters."""
    return one_line(words, MAX_WHY)
