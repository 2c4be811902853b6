"""When an open round closes. Pure."""

import math
from collections.abc import Sequence

from coordinator.round_machine.events import RoundPhase, RoundState, Rules
from protocol.secure_aggregation.neighbours import MIN_DEVICES, graph_size


def least(rules: Rules) -> int:
    """Updates that a version needs."""
    return 0 if rules.sampled else max(1, rules.min_devices)


def needed(rules: Rules, selected: int) -> int:
    """How many of the selected devices must deliver for the round to close early.

    Of a secure round at least as many as its sum needs: closed before, each attempt would fail.
    """
    return max(least(rules), math.ceil(rules.quorum * selected - 1e-9), _for_a_sum(rules.max_lost, selected))


def _for_a_sum(max_lost: float | None, selected: int) -> int:
    """Of a secure round: how many masked updates give a sum that can be opened."""
    if max_lost is None or selected < MIN_DEVICES:
        return 0
    neighbours = graph_size(selected, max_lost).threshold
    return max(neighbours + 1, math.ceil((1.0 - max_lost) * selected - 1e-9))


def up_to_close(rules: Rules, state: RoundState, devices: Sequence[str]) -> Sequence[str]:
    """The devices, in order, up to the one whose update closes the round.

    Args:
        rules: of the round machine.
        state: of a round that takes updates.
        devices: invited ones that have not delivered.
    """
    selected, late = len(state.selected), state.phase is RoundPhase.WAITING
    for count, device in enumerate(devices, start=1):
        selected += device not in state.selected
        enough = least(rules) if late else needed(rules, selected)
        if len(state.delivered) + count >= enough:
            return devices[:count]
    return devices


def closes_at(rules: Rules, state: RoundState) -> float | None:
    """When an open round ends by itself, on the driver's time line.

    That is its deadline; or sooner, if enough devices delivered and all missing ones are offline (not of a
    sample).
    """
    if rules.sampled:  # until when others are waited for must not depend on who is away
        return state.until
    if state.until is None or state.away_since is None or len(state.delivered) < least(rules):
        return state.until
    return min(state.until, state.away_since + rules.away_grace_s)
