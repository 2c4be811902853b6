"""Whether a stage passes: pure, from what its devices said."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.rollout.states import Heard, Member, Rollout
from protocol.rollout import TrialReport

_PHASES: Final = frozenset({"trial", "committed", "rolled_back", "refused"})
_EPSILON: Final = 1e-9
_NAMES: Final = 5


@dataclass(frozen=True, slots=True)
class Counts:
    """Of some devices of a rollout. ``silent``: pointed at it, and not here since then."""

    members: int = 0
    seen: int = 0
    committed: int = 0
    failed: int = 0
    trial: int = 0
    waiting: int = 0
    silent: int = 0
    speechless: int = 0
    """They run it and say nothing of a trial: agents of an older release."""
    barred: int = 0
    """Quarantined or revoked since: neither waited for nor counted."""

    @classmethod
    def of(cls, members: Iterable[Member]) -> "Counts":
        """Count them."""
        every = list(members)
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
        )

    @property
    def words(self) -> str:
        """For people."""
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
        )


def heard(member: Member, said: Heard, digests: Iterable[str], now: float) -> Member:
    """A device after its last report; the same object where nothing is new.

    A report counts for the pointer it answers (its serial); a bundle that is committed counts whenever that
    was. Who failed once has failed for this pointer. From who is barred nothing counts until it is not.
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
    if trial is not None and ours and not member.failed and _answers(member, trial.phase, trial.serial):
        phase, why = _phase(trial)
        told = {"phase": phase, "why": in_a_line(why), "measures": dict(trial.measures)}
        changes |= {key: value for key, value in told.items() if getattr(member, key) != value}
        if phase not in member.times:
            changes["times"] = {**member.times, phase: now}
        if not member.seen:
            changes["seen"] = True
    return member.model_copy(update=changes) if changes else member


def _phase(trial: TrialReport) -> tuple[str, str]:
    """A device's phase and its words; of a phase that only a newer release knows: nothing is decided yet."""
    if trial.phase in _PHASES:
        return trial.phase, trial.why
    return "trial", f"{trial.phase}: {trial.why}"


def in_a_line(words: str) -> str:
    """Without what a terminal would obey: a device wrote it, and the operator reads it."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def _answers(member: Member, phase: str, serial: int) -> bool:
    return phase == "committed" or serial == member.serial


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the open stage. ``failed``: why it has, in words; ``enough``: enough devices have committed."""

    failed: str = ""
    enough: bool = False


def judged(rollout: Rollout) -> Verdict:
    """Whether the rollout's stage may pass, or has failed."""
    gates = rollout.plan.gates
    losers = {name: one for name, one in rollout.members.items() if one.failed}
    if len(losers) > gates.max_failed:
        allowed = f"{gates.max_failed} may fail" if gates.max_failed else "none may fail"
        return Verdict(failed=f"{_named(losers)} ({allowed})")
    stage = Counts.of(one for one in rollout.members.values() if one.stage == rollout.stage)
    if not stage.members:
        return Verdict()
    needed = gates.min_committed_share
    if (stage.members - stage.failed) / stage.members < needed - _EPSILON:
        return Verdict(
            failed=f"{stage.failed} of the {stage.members} devices of {rollout.stage_words} failed, and "
            f"{needed:g} of them must commit: {_named(losers)}"
        )
    return Verdict(enough=stage.committed > 0 and stage.committed >= needed * stage.seen - _EPSILON)


def _named(losers: Mapping[str, Member]) -> str:
    shown = [
        f"{name} {one.phase.replace('_', ' ')}: {one.why or 'no reason given'}"
        for name, one in sorted(losers.items())[:_NAMES]
    ]
    more = len(losers) - _NAMES
    return "; ".join(shown) + (f" and {more} more" if more > 0 else "")
