"""What is to be seen of the fleet: the daemon and ``lichen coordinator status`` look at it alike."""

from collections.abc import Callable, Iterable
from itertools import islice

from coordinator.fleet.device_registry import Roster
from coordinator.fleet.requirements import ALONE, Terms
from coordinator.round_machine.events import Phase, RoundState
from coordinator.rounds.progress import NAMES, Outlook
from protocol.errors import Refused


def able(
    roster: Roster, state: RoundState, terms: Terms, barred: Callable[[str], Refused | None]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whom a round could select; and who would be among them, if only there were a device that trains."""
    return _sorted_out(roster, state, terms, barred, roster.able(terms))


def anybody(roster: Roster, devices: Iterable[str], barred: Callable[[str], Refused | None]) -> bool:
    """Whether one of these devices is here, and heard."""
    known = ((device, roster.get(device)) for device in devices)
    return any(one is not None and one.online and barred(device) is None for device, one in known)


def _sorted_out(
    roster: Roster,
    state: RoundState,
    terms: Terms,
    barred: Callable[[str], Refused | None],
    ready: tuple[str, ...],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    refused = {device for device, _ in state.refused}
    found = tuple(d for d in ready if d not in refused and barred(d) is None)
    if terms.needs_training and not any(map(roster.trains, (*found, *state.delivered))):
        return (), found
    return found, ()


def outlook(
    roster: Roster,
    state: RoundState,
    terms: Terms,
    barred: Callable[[str], Refused | None],
    broker: str = "",
) -> Outlook:
    """Whom a round could select, and what keeps others out of it; ``NAMES`` of each kind are named.

    Args:
        roster: the devices.
        state: where the round stands.
        terms: what a device needs.
        barred: why a device is not heard now (quarantined, revoked). It comes before all else that a device
            lacks: whatever else happens, it ends only by time or by the operator.
        broker: why there is no connection to it.
    """
    refused = dict(state.refused)
    ready = roster.able(terms)
    lacks: dict[str, str] = {}
    if state.phase is Phase.COLLECTING:
        missing = state.missing[:NAMES]
        lacks = {device: roster.lacks(device, terms) for device in missing}
    elif state.phase is Phase.WAITING:
        lacks = dict(islice(roster.unable(terms), NAMES))
    lacks |= {device: f"was refused: {reason}" for device, reason in islice(refused.items(), NAMES)}
    turned_away = {device: no for device in ready if (no := barred(device)) is not None}
    lacks |= {device: str(no) for device, no in islice(turned_away.items(), NAMES)}
    found, alone = _sorted_out(roster, state, terms, barred, ready)
    lacks |= dict.fromkeys(alone[:NAMES], ALONE)
    heard = {device: roster.heard(device) for device in state.missing[:NAMES]}
    return Outlook(found, lacks, len(roster), broker, heard)
