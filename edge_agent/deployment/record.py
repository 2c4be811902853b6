"""``current.json``: the bundles that are active, on trial, and rejected on this device.

Written whole and atomically: each step of a rollout is one write. ``bundle_store`` reads it. Pure.
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
    """A bundle with a folder on this disk."""

    task: Name
    version: Count
    digest: Digest
    serial: Count = 0
    """Of the decision that announced it."""
    epoch: Count | None = None
    """``edge_agent.trust.trusted_metadata.TrustedMetadata.epoch`` at installation; None: unsigned."""


class TrialBundle(InstalledBundle):
    """A bundle that must pass its trial."""

    rules: Trial
    rollout: bool = False
    """The rules came with the pointer: a rollout waits for the result."""
    starts: Count = 0
    """Starts of the agent during the trial, without those that ended normally."""
    ran_s: Seconds = 0.0
    """Seconds since its first window, over all starts."""
    measures: TrialMetrics


class RejectedBundle(Wire):
    """A bundle that was rolled back; it is tried again when a later decision announces it."""

    digest: Digest
    serial: Count
    why: Annotated[str, Field(max_length=MAX_WHY)] = ""


class DeploymentRecord(Wire):
    """Content of the file."""

    format: Literal[2] = 2
    serial: Count = 0
    """Of the last decision that this device followed: earlier ones are out of date."""
    epoch: Count | None = None
    """Of that decision's signer (``TrustedMetadata.epoch``); None: unsigned, or an older release wrote it."""
    committed: InstalledBundle | None = None
    before: InstalledBundle | None = None
    """The former model, loaded if the committed one is damaged."""
    trial: TrialBundle | None = None
    """Also while the agent is starting: it is loaded again."""
    bad: Annotated[tuple[RejectedBundle, ...], Field(max_length=MAX_BAD)] = ()
    """Oldest first."""
    report: TrialReport | None = None
    """Of the last announced bundle, unless it is on trial."""

    @property
    def digests(self) -> tuple[str, ...]:
        """Of the bundles that are needed."""
        return tuple(kept.digest for kept in (self.trial, self.committed, self.before) if kept is not None)

    def failed(self, digest: str, serial: int) -> RejectedBundle | None:
        """The bundle's rejection, unless a later decision announces it again."""
        return next((b for b in self.bad if b.digest == digest and b.serial >= serial), None)


def installed_bundle(pointer: ModelPointer, epoch: int | None) -> InstalledBundle:
    """The bundle of a pointer; ``epoch``: as in :class:`InstalledBundle`."""
    return InstalledBundle(
        task=pointer.task,
        version=pointer.version,
        digest=pointer.bundle.digest,
        serial=pointer.serial,
        epoch=epoch,
    )


def reported(record: DeploymentRecord) -> TrialReport | None:
    """Report for ``up/state``; None before the first pointer."""
    trial = record.trial
    if trial is None:
        return record.report
    return report_of(trial, "trial", measures=trial.measures)


def report_of(
    kept: InstalledBundle,
    phase: Literal["trial", "committed", "rolled_back", "refused"],
    why: str = "",
    measures: TrialMetrics | None = None,
) -> TrialReport:
    """Report on a bundle, for the coordinator."""
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
