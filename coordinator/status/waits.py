"""What the coordinator waits for, from its files (``lichen coordinator status --why``)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.round_machine.closing import closes_at, needed
from coordinator.round_machine.events import RoundPhase, RoundState, Rules
from coordinator.rounds.progress import FleetStatus, explain_phase, lacking
from runtime.waits import Wait

_DEVICES: Final = 20
"""Missing devices named one by one."""
_WORK: Final = frozenset(
    {RoundPhase.INITIALISING, RoundPhase.AGGREGATING, RoundPhase.EVALUATING, RoundPhase.EXPORTING}
)


@dataclass(frozen=True)
class CoordinatorStatus:
    """Everything that the waits follow from. ``worker_s``: longest job of a worker; ``now``: Unix seconds."""

    rules: Rules
    state: RoundState
    outlook: FleetStatus
    now: float
    worker_s: float
    broker: Wait | None = None
    quarantines: tuple[Wait, ...] = ()
    encoder_models: Wait | None = None
    secrets: str = ""
    """That devices have different fleet secrets, as text; empty if they have not."""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Why the open attempt has its devices."""


def collecting(rules: Rules, state: RoundState, ahead_s: float) -> dict[str, Any] | None:
    """How far the open round is; None: none takes updates.

    Args:
        rules: of the round machine.
        state: its state.
        ahead_s: by how much the clock is ahead of the line that the rounds' times are on.

    Returns:
        ``selected`` and ``delivered`` devices, the ``quorum``, and in Unix seconds ``since`` and ``until``.
    """
    if state.phase is not RoundPhase.COLLECTING:
        return None
    until = closes_at(rules, state)
    return {
        "selected": len(state.selected),
        "delivered": len(state.delivered),
        "quorum": needed(rules, len(state.selected)),
        "since": state.since + ahead_s,
        "until": None if until is None else until + ahead_s,
    }


def waits(seen: CoordinatorStatus) -> list[Wait]:
    """All waits, the most pressing first."""
    return list(_waits(seen))


def _waits(seen: CoordinatorStatus) -> Iterator[Wait]:
    state = seen.state
    if seen.broker is not None:
        yield seen.broker
    if state.retry_at is not None:
        words = state.trouble or "the last attempt failed"
        yield Wait("retry", words, state.since, state.retry_at, "it is tried again")
    yield from _phase(seen)
    if seen.encoder_models is not None and state.phase is not RoundPhase.DONE:  # else no round needs them
        yield seen.encoder_models
    if state.phase in {RoundPhase.WAITING, RoundPhase.COLLECTING}:
        yield from seen.quarantines  # devices that a round could select otherwise
    if seen.secrets:  # devices that are not eligible: rounds do not wait for them
        yield Wait("secrets", seen.secrets, None, None, "until they are one")


def _phase(seen: CoordinatorStatus) -> Iterator[Wait]:
    state, words = seen.state, explain_phase(seen.rules, seen.state, seen.now, seen.outlook)
    if state.phase in _WORK:
        if state.retry_at is None:
            yield Wait(
                "worker", words, state.since, state.since + seen.worker_s, "it is given up and tried again"
            )
    elif state.phase is RoundPhase.WAITING:
        if state.enough_since is None:
            yield Wait("devices", words, state.since, None, "until enough devices are eligible")
        else:
            until = state.enough_since + seen.rules.spread_s
            yield Wait("devices", words, state.since, until, "the round is opened")
    elif state.phase is RoundPhase.COLLECTING:
        closes = "the round closes, or is offered anew where too few are here"
        ends = closes_at(seen.rules, state)
        yield Wait("updates", words, state.since, ends, closes)
        for device in state.first_missing(_DEVICES):
            words = lacking(seen.outlook, device) or "online"
            if not seen.outlook.lacks.get(device):
                words = f"it was offered the round; its update is not here ({words})"
            if device in seen.chosen:
                words = f"{words}; selected: {seen.chosen[device]}"
            yield Wait(f"update of {device}", words, state.since, ends, "the round goes on without it")
