"""Counts for the round machine the devices that a round could select.

A device's state costs one look at this device. A look at all of them comes only at intervals: quarantines and
revocations begin and end by themselves.
"""

import math
from collections.abc import Set as AbstractSet  # noqa: TC003 - of an attribute
from typing import Final

from coordinator.round_machine.device_sets import NO_WORDS
from coordinator.round_machine.events import RoundState, RoundTick
from coordinator.rounds.outlook import RoundView

_POLL_S: Final = 2.0
"""Interval of the look at all devices."""
_LOOKS_A_SECOND: Final = 5_000
"""Devices that are looked at in a second, at most, so that a larger fleet is looked at less often."""


class Lookout:
    """Makes ticks.

    Args:
        fleet: the devices.
        spread_s: when none joined for this long, the fleet has settled.
        now: seconds on the driver's time line.
    """

    def __init__(self, fleet: RoundView, spread_s: float, now: float) -> None:
        self._fleet = fleet
        self._spread_s = spread_s
        self._here: set[str] = set()
        self._eligible: AbstractSet[str] = frozenset()
        self._refused = NO_WORDS
        self._looked_at = -math.inf
        self._joined_at = now
        self.looks = 0
        """Looks at one device."""

    def tick(self, now: float, state: RoundState) -> RoundTick:
        """How many devices a round could select, as of now or of a moment ago.

        Args:
            now: seconds on the driver's time line.
            state: of the round.
        """
        changed = self._fleet.take_changed()
        if not self._fleet.may_select():
            self._here.clear()
            self._looked_at = -math.inf
            return RoundTick(settled=now - self._joined_at >= self._spread_s)
        eligible, every_s = self._fleet.eligible(), max(_POLL_S, len(self._here) / _LOOKS_A_SECOND)
        same = state.refused is self._refused and eligible is self._eligible
        if not same or now - self._looked_at >= every_s:
            self._refused, self._eligible, self._looked_at = state.refused, eligible, now
            changed = {*self._here, *eligible}
        for device in changed:
            self.looks += 1
            self._look(device, device in eligible and self._fleet.admits(device, state), now)
        return self._tick(now, state)

    def _look(self, device: str, able: bool, now: float) -> None:  # noqa: FBT001 - what was seen of it
        if not able:
            self._here.discard(device)
        elif device not in self._here:
            self._here.add(device)
            self._joined_at = now

    def _tick(self, now: float, state: RoundState) -> RoundTick:
        settled = now - self._joined_at >= self._spread_s
        if not self._fleet.suffices(self._here, state):
            return RoundTick(present=len(state.delivered), settled=settled)
        away = sum(device not in self._here for device in state.delivered.unsorted())
        return RoundTick(able=len(self._here), present=len(self._here) + away, settled=settled)
