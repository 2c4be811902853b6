"""Queries of the round machine: the state of a journal, and whether an update is acceptable."""

from coordinator.round_machine import table
from coordinator.round_machine.events import Checkpoint, Event, RoundPhase, RoundState, Rules
from protocol.errors import Reason, Refused


def replay(events: list[tuple[float, Event | Checkpoint]]) -> tuple[RoundState, Rules | None]:
    """The state that a journal leads to, and the rules in force."""
    state, rules = RoundState(), None
    for now, event in events:
        if isinstance(event, Checkpoint):
            state, rules = event.state, event.rules
        elif rules is not None:
            state, _ = table.apply(rules, state, event, now)
    return state, rules


def check_acceptable(state: RoundState, device: str, round_: int, base: str | None) -> None:
    """Whether an update by this device may be counted now. ``base`` None: not known yet.

    Raises:
        Refused: wrong round, wrong base, or the device was not selected.
    """
    taking = state.phase is RoundPhase.COLLECTING or (
        state.phase is RoundPhase.WAITING and bool(state.invited)
    )
    if round_ != state.round or not taking:
        here = f"round {state.round} is {'open' if taking else state.phase.value}"
        raise Refused(Reason.WRONG_ROUND, f"the update is for round {round_}; {here}")
    if base is not None and base != state.manifest:
        raise Refused(Reason.WRONG_BASE, f"base {base[:12]}; round {round_} is on {state.manifest[:12]}")
    if not state.asks(device):
        raise Refused(Reason.NOT_SELECTED, f"{device} was not selected for round {round_}")
