"""Times of samples of sound, from the times of blocks. Pure.

A block's time jitters by a few milliseconds, its samples do not. So samples follow each other by the nominal
period, and are moved slowly to the times of the blocks; a block that is further away begins anew, with a gap.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_FOLLOW: Final = 0.1
"""Share of the distance by which a block is moved."""
JUMP_S: Final = 0.01
"""A block further away than this from the previous one's end begins anew."""
JUDGED_S: Final = 5.0
"""Rates are compared over stretches of this length."""
TOLERANCE: Final = 0.02
"""Clocks of sound cards are right within 0.1 %; samples that are lost come in whole blocks."""


class SoundTimes:
    """The time axis of one stream.

    Args:
        rate_hz: nominal.
    """

    def __init__(self, rate_hz: int) -> None:
        self._rate = rate_hz
        self._end: float | None = None
        self._since = 0.0
        self._samples = 0
        self.gaps = 0
        """Blocks that did not begin where the previous one ended."""
        self.found_hz: float | None = None
        """Samples a second of the last stretch that was judged, if they are not ``rate_hz``."""

    def times(self, begin: float, n: int) -> NDArray[np.float64]:
        """Times of ``n`` samples of a block that begins at ``begin`` (s); never before the last ones."""
        self._judge(begin, n)
        period = 1.0 / self._rate
        start = begin
        if self._end is not None:
            distance = begin - self._end
            if abs(distance) <= JUMP_S:
                start = self._end + _FOLLOW * distance
            else:
                self.gaps += 1
                start = max(begin, self._end)
        # The end is where the block's own time says, or samples of a rate that lies would run away for ever.
        self._end = start + n * period
        if start > begin + JUMP_S:
            self._end = max(start, begin + n * period)
            return np.linspace(start, self._end, n, endpoint=False)
        return np.asarray(start + period * np.arange(n), np.float64)

    def _judge(self, begin: float, n: int) -> None:
        if not self._samples:
            self._since = begin
        span = begin - self._since
        if span >= JUDGED_S:
            found = self._samples / span
            self.found_hz = None if abs(found / self._rate - 1) <= TOLERANCE else found
            self._since, self._samples = begin, 0
        self._samples += n
