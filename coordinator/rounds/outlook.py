"""What is to be seen of the fleet: the daemon and ``lichen coordinator status`` look at it alike."""

from collections.abc import Callable
from itertools import islice

from coordinator.roster import Roster
from coordinator.rounds.states import Phase, RoundState
from coordinator.rounds.why import NAMES, Outlook
from protocol.errors import Refused


def outlook(
    roster: Roster,
    state: RoundState,
    least: int,
    barred: Callable[[str], Refused | None],
    broker: str = "",
) -> Outlook:
    """Whom a round could select, and what keeps others out of it; ``NAMES`` of each kind are named.

    Args:
        roster: the devices.
        state: where the round stands.
        least: labelled windows that a device needs.
        barred: why a device is not heard now (quarantined, revoked). It comes before all else that a device
            lacks: whatever else happens, it ends only by time or by the operator.
        broker: why there is no connection to it.
    """
    refused = dict(state.refused)
    ready = roster.able(least)
    lacks: dict[str, str] = {}
    if state.phase is Phase.COLLECTING:
        missing = state.missing[:NAMES]
        lacks = {device: roster.lacks(device, least) for device in missing}
    elif state.phase is Phase.WAITING:
        lacks = dict(islice(roster.unable(least), NAMES))
    lacks |= {device: f"was refused: {reason}" for device, reason in islice(refused.items(), NAMES)}
    turned_away = {device: no for device in ready if (no := barred(device)) is not None}
    lacks |= {device: str(no) for device, no in islice(turned_away.items(), NAMES)}
    able = tuple(device for device in ready if device not in refused and device not in turned_away)
    heard = {device: roster.heard(device) for device in state.missing[:NAMES]}
    return Outlook(able, lacks, len(roster), broker, heard)
