"""Checks the fleet for the round machine only after changes, because checking a large one takes long."""

import math
from collections.abc import Callable
from typing import Final

from coordinator.round_machine.device_sets import DeviceSet
from coordinator.round_machine.events import RoundTick

_POLL_S: Final = 2.0
"""Interval of the check without changes: quarantines end by time."""


class Lookout:
    """Makes ticks.

    Args:
        able: devices that a round could select now; sorted.
        spread_s: when none joined for this long, the fleet has settled.
    """

    def __init__(self, able: Callable[[], tuple[str, ...]], spread_s: float, now: float) -> None:
        self._able = able
        self._spread_s = spread_s
        self._here: frozenset[str] = frozenset()
        self._changed = True
        self._looked_at = -math.inf
        self._joined_at = now

    def changed(self) -> None:
        """A device's state changed: the next tick checks the fleet, once for all changes."""
        self._changed = True

    def tick(self, now: float, delivered: DeviceSet) -> RoundTick:
        """How many devices a round could select, as of now or of a moment ago.

        Args:
            now: seconds on the driver's time line.
            delivered: the devices that delivered in this round.
        """
        if self._changed or now - self._looked_at >= _POLL_S:
            self._changed, self._looked_at = False, now
            here = frozenset(self._able())
            if here - self._here:
                self._joined_at = now
            self._here = here
        away = sum(device not in self._here for device in delivered.unsorted())
        settled = now - self._joined_at >= self._spread_s
        return RoundTick(able=len(self._here), present=len(self._here) + away, settled=settled)
