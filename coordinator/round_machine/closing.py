"""When an open round closes. Pure."""

import math

from coordinator.round_machine.events import RoundState, Rules


def needed(rules: Rules, selected: int) -> int:
    """How many of the selected devices must deliver for the round to close early."""
    return max(1, rules.min_devices, math.ceil(rules.quorum * selected - 1e-9))


def closes_at(rules: Rules, state: RoundState) -> float | None:
    """When an open round ends by itself, on the driver's time line.

    That is its deadline; or sooner, if enough devices delivered and all missing ones are offline.
    """
    if state.until is None or state.away_since is None or len(state.delivered) < max(1, rules.min_devices):
        return state.until
    return min(state.until, state.away_since + rules.away_grace_s)
