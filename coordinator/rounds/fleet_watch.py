"""Looks at the fleet for the round machine, when there is news: to look at a large one takes long."""

import math
from collections.abc import Callable
from typing import Final

from coordinator.round_machine.events import RoundTick

_POLL_S: Final = 2.0
"""The fleet is looked at so often where nobody says anything: quarantines end by time."""


class Lookout:
    """Makes ticks.

    Args:
        able: whom a round could select now; sorted.
        spread_s: when so long nobody joined, the fleet has settled.
    """

    def __init__(self, able: Callable[[], tuple[str, ...]], spread_s: float, now: float) -> None:
        self._able = able
        self._spread_s = spread_s
        self._here: tuple[str, ...] = ()
        self._changed = True
        self._looked_at = -math.inf
        self._joined_at = now

    def changed(self) -> None:
        """A device said something of itself: the next tick looks at the fleet, once for all that came."""
        self._changed = True

    def tick(self, now: float) -> RoundTick:
        """Whom a round could select, as of now or of a moment ago.

        Args:
            now: seconds on the driver's time line.
        """
        if self._changed or now - self._looked_at >= _POLL_S:
            self._changed, self._looked_at = False, now
            here = self._able()
            if set(here) - set(self._here):
                self._joined_at = now
            self._here = here
        return RoundTick(able=self._here, settled=now - self._joined_at >= self._spread_s)
