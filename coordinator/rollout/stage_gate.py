"""Whether a stage passes, from its devices' reports. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.rollout.device_record import DeviceReport, RolloutDevice
from coordinator.rollout.model import Rollout
from protocol.rollout import TrialReport
from runtime.text import first_few, one_line

_PHASES: Final = frozenset({"trial", "committed", "rolled_back", "refused"})
_EPSILON: Final = 1e-9
_MAX_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Counts of some devices of a rollout. ``silent``: have a pointer to it, and were not online since."""

    members: int = 0
    seen: int = 0
    committed: int = 0
    failed: int = 0
    trial: int = 0
    waiting: int = 0
    silent: int = 0
    speechless: int = 0
    """They run it and report no trial: agents of an older release."""
    barred: int = 0
    """Quarantined or revoked since: neither awaited nor counted."""
    left_out: int = 0
    """They refused the last versions that others kept: neither awaited nor counted, in no other number."""

    @classmethod
    def of(cls, members: Iterable[RolloutDevice]) -> "StageCounts":
        """Count them."""
        asked = list(members)
        every = [one for one in asked if not one.left_out]
        barred = sum(one.barred for one in every)
        here = [one for one in every if one.seen and not one.barred]
        waiting = [one for one in here if one.phase == "waiting"]
        return cls(
            members=len(every),
            seen=len(here),
            committed=sum(one.phase == "committed" for one in here),
            failed=sum(one.failed for one in every),
            trial=sum(one.phase == "trial" for one in here),
            waiting=sum(not one.runs for one in waiting),
            silent=len(every) - len(here) - barred,
            speechless=sum(one.runs for one in waiting),
            barred=barred,
            left_out=len(asked) - len(every),
        )

    @property
    def may_commit(self) -> int:
        """Devices that are online and did not fail; how many may fail is checked elsewhere."""
        return self.committed + self.trial + self.waiting + self.speechless

    @property
    def words(self) -> str:
        """As text."""
        found = [
            f"{self.committed} of {self.seen} that are here committed",
            *(f"{n} {what}" for n, what in self._rest if n),
        ]
        return ", ".join(found)

    @property
    def _rest(self) -> tuple[tuple[int, str], ...]:
        return (
            (self.failed, "failed"),
            (self.trial, "on trial"),
            (self.waiting, "not yet on trial"),
            (self.speechless, "run it and know no trial (an older agent)"),
            (self.silent, "not here since"),
            (self.barred, "quarantined or revoked"),
            (self.left_out, "left out, because they refused the last versions that others kept"),
        )


def apply_report(
    member: RolloutDevice, said: DeviceReport, digests: Iterable[str], now: float
) -> RolloutDevice:
    """A device after its last report; the same object if nothing is new.

    A report counts for the pointer that it answers (its serial); a committed bundle counts whenever that was.
    A device that failed once has failed for this pointer. Reports of a barred device do not count.
    """
    if said.barred:
        return member if member.barred else member.model_copy(update={"barred": True})
    changes: dict[str, object] = {"barred": False} if member.barred else {}
    if said.online and not member.seen:
        changes["seen"] = True
    trial, known = said.trial, set(digests)
    ours = trial is not None and trial.bundle in known
    runs = trial is None and said.model in known
    if runs != member.runs:
        changes["runs"] = runs
    if (
        trial is not None
        and ours
        and not member.failed
        and (trial.phase == "committed" or trial.serial == member.serial)
    ):
        phase, why = _phase(trial)
        told = {"phase": phase, "why": one_line(why), "measures": dict(trial.measures)}
        changes |= {key: value for key, value in told.items() if getattr(member, key) != value}
        if phase not in member.times:
            changes["times"] = {**member.times, phase: now}
        if not member.seen:
            changes["seen"] = True
    return member.model_copy(update=changes) if changes else member


def _phase(trial: TrialReport) -> tuple[str, str]:
    """A device's phase and reason; a phase that only a newer release knows decides nothing."""
    if trial.phase in _PHASES:
        return trial.phase, trial.why
    return "trial", f"{trial.phase}: {trial.why}"


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """Verdict on the open stage. ``failed``: why it has failed; ``enough``: enough devices have committed."""

    failed: str = ""
    enough: bool = False


def evaluate_stage(rollout: Rollout, base_share: float = 0.0) -> StageVerdict:
    """Whether the rollout's stage may pass, or has failed.

    Args:
        rollout: with its devices' reports.
        base_share: of the devices, that fail any version.
    """
    gates = rollout.plan.gates
    counted = {name: one for name, one in rollout.members.items() if not one.left_out}
    losers = {name: one for name, one in counted.items() if one.failed}
    allowed = gates.allowed(len(counted), base_share)
    if len(losers) > allowed:
        words = f"{allowed} of {len(counted)} may fail" if allowed else "none may fail"
        return StageVerdict(failed=f"{_named(losers)} ({words})")
    stage = StageCounts.of(one for one in rollout.members.values() if one.stage == rollout.stage)
    if not stage.members:
        return StageVerdict(enough=stage.left_out > 0)
    needed = gates.min_committed_share
    if (len(counted) - len(losers)) / len(counted) < needed - _EPSILON:
        where = "all stages so far" if rollout.stage else rollout.stage_words
        return StageVerdict(
            failed=f"{len(losers)} of the {len(counted)} devices of {where} failed, and {needed:g} of them "
            f"must commit: {_named(losers)}"
        )
    return StageVerdict(
        enough=stage.committed > 0 and stage.committed >= needed * stage.may_commit - _EPSILON
    )


def _named(losers: Mapping[str, RolloutDevice]) -> str:
    failures = [
        f"{name} {one.phase.replace('_', ' ')}: {one.why or 'no reason given'}"
        for name, one in sorted(losers.items())
    ]
    return first_few(failures, _MAX_NAMES, "; ")
