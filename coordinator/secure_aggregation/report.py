"""What people see of an attempt of a secure round: its stage, and who was lost at which. Pure."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from coordinator.round_machine.device_sets import DeviceSet
from coordinator.secure_aggregation.events import SecurePhase, SecureState
from coordinator.secure_aggregation.words import words_of
from protocol.base import Wire
from protocol.secure_aggregation.attempt import Attempt
from protocol.tasks.folding import SecureAggregation
from runtime.text import MAX_NAMES

NAMED: Final = 64
"""Devices of a stage that are named; all are counted."""
_AFTER_MASKED: Final = frozenset({SecurePhase.UNMASK, SecurePhase.DONE})
_AFTER_SHARES: Final = frozenset({SecurePhase.MASKED, *_AFTER_MASKED})


class LostDevices(Wire):
    """Devices that an attempt went on without.

    Attributes:
        stage: at which they were lost.
        why: what they did not do.
        count: of them.
        devices: the first ones, by name.
    """

    stage: str
    why: str
    count: int
    devices: tuple[str, ...]

    @property
    def line(self) -> str:
        """For people."""
        more = self.count - MAX_NAMES
        names = ", ".join(self.devices[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
        return f"lost at {self.stage}: {names} ({self.why})"


class SecureReport(Wire):
    """An attempt, as of the end of its last stage.

    Attributes:
        attempt: of the round, from 1.
        phase: what the coordinator waits for (:class:`coordinator.secure_aggregation.events.SecurePhase`).
        words: the stage and its counts, and why the sum stayed closed.
        why: the latter alone; empty: it did not.
        asked: devices that were asked; ``keys``, ``shares``, ``going``, ``inside`` and ``answered``: of
            them those with keys, with shares, told to mask, in the sum, and that have answered.
        lost: by stage, in order.
    """

    attempt: int
    phase: str
    words: str
    why: str
    asked: int
    keys: int
    shares: int
    going: int
    inside: int
    answered: int
    lost: tuple[LostDevices, ...]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"secure aggregation: {self.words}"
        yield from (f"  {one.line}" for one in self.lost)


def report_of(attempt: Attempt, state: SecureState, asked: AbstractSet[str]) -> SecureReport:
    """The report on an attempt.

    Args:
        attempt: which.
        state: how it stands.
        asked: the devices of its offer.
    """
    return SecureReport(
        attempt=attempt.attempt,
        phase=state.phase.value,
        words=words_of(attempt, state),
        why=state.why,
        asked=max(state.expected, len(asked)),
        keys=len(state.joined),
        shares=len(state.shared),
        going=len(state.going),
        inside=len(state.survivors),
        answered=len(state.revealed),
        lost=tuple(_lost(state, asked)),
    )


def given_up(state: SecureState, delivered: AbstractSet[str]) -> SecureState:
    """How an attempt is shown that the round has left; the state itself if it had ended before.

    Args:
        state: as it was last.
        delivered: devices whose updates are in the journal.
    """
    if state.phase in {SecurePhase.DONE, SecurePhase.FAILED}:
        return state
    came = DeviceSet(name for name in state.going if name in delivered)
    stage = state.phase.value.replace("_", " ")
    counts = f": {len(came)} of {len(state.going)} came" if state.phase is SecurePhase.MASKED else ""
    why = f"the round gave the attempt up in stage {stage}{counts}"
    return state.model_copy(update={"phase": SecurePhase.FAILED, "delivered": came, "why": why})


def _lost(state: SecureState, asked: AbstractSet[str]) -> Iterator[LostDevices]:
    phase, failed = state.phase, state.phase is SecurePhase.FAILED
    if phase is not SecurePhase.KEYS:
        yield from _of("keys", "announced no keys in time", asked, state.joined)
    if phase in _AFTER_SHARES or (failed and state.shared):
        yield from _of("shares", "sent no shares in time", state.joined, state.shared)
    if state.going:
        yield from _of("shares", "had too few neighbours left", state.shared, state.going)
    if phase in _AFTER_MASKED or (failed and state.going):
        yield from _of("masked updates", "sent no masked update in time", state.going, state.delivered)
    if phase is SecurePhase.DONE or (failed and state.survivors):
        yield from _of("unmask", "did not answer in time", state.survivors, state.revealed)


def _of(stage: str, why: str, before: AbstractSet[str], after: DeviceSet) -> Iterator[LostDevices]:
    if names := sorted(set(before).difference(after)):
        yield LostDevices(stage=stage, why=why, count=len(names), devices=tuple(names[:NAMED]))


def lineage_of(options: SecureAggregation, devices: int) -> dict[str, Any]:
    """What a bundle says of a version whose sum is over so many devices, as JSON values."""
    words = f"made of the sum of {devices} devices' masked updates: nobody saw a single one"
    return {"devices": devices, "min_devices": options.min_devices, "words": words}
