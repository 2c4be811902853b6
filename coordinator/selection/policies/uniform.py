"""``rounds.selection = "uniform"``: devices at random, all with the same chance.

The devices with the lowest places (``protocol.cohort``) are asked, so the offer is a threshold and has the
same size for any fleet. Devices that are away have places, too: those below the threshold take part when they
come back. A later attempt asks further devices first.
"""

from coordinator.selection.policies.base import NEEDED, Policy, Selection, SelectionInput, everyone
from protocol.cohort import MAX_MEMBERS, place, salt_of

_RANDOM = "drawn at random"


def choose(draw: SelectionInput) -> Selection:
    """At most ``draw.wanted`` of the candidates, and all other devices with a place below theirs."""
    wanted, salt = draw.wanted, draw.salt or salt_of(draw.seed)
    if wanted is None or wanted >= len(draw.candidates):
        return everyone(draw.order(), wanted)
    places = {device: place(salt, device) for device in draw.candidates}
    ranked = sorted(places, key=lambda device: (device in draw.tried, places[device]))
    why = dict.fromkeys(ranked[:wanted], _RANDOM)
    stand_in = None
    if not any(device in draw.needed for device in why):
        stand_in = next((device for device in ranked[wanted:] if device in draw.needed), None)
    if stand_in is not None:
        if wanted <= MAX_MEMBERS:
            del why[ranked[wanted - 1]]
        why[stand_in] = NEEDED
    by_name = stand_in is not None and wanted <= MAX_MEMBERS
    below = None if by_name else max(places[device] for device in why) + 1
    return Selection(tuple(sorted(why)), why, below=below)


POLICY = Policy("uniform", choose, by_name=False)
