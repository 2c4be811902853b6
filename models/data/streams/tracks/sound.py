"""Samples of sound: a window takes them as they came, without interpolation between them. Pure NumPy.

Interpolation would dampen high tones, by as much as the phase between microphone and grid says, and would
make fractions out of samples of 16 bits, which take twice the room on the disk.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.data.streams.tracks.track import Track

TOLERANCE_S: Final = 0.005
"""A sample may be this far from its grid point: clocks of sound cards differ, and times of blocks vary."""
_AT_THE_POINT: Final = 0.25
"""A sample this share of a period after a grid point is at it: times of blocks are rounded."""


class SoundTrack(Track):
    """Samples of sound since the oldest open window."""

    @property
    def _tolerance_s(self) -> float:
        return max(TOLERANCE_S, self.period_s)

    @property
    def reach(self) -> float:
        """Stream time up to which grid points can be filled, if samples come as late as is tolerated."""
        return self.mark + self.period_s - self._tolerance_s

    @property
    def beside_s(self) -> float:
        """As :attr:`Track.beside_s`."""
        return max(super().beside_s, self._tolerance_s)

    def resample(self, grid_BT: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """As :meth:`Track.resample`; consecutive samples where they lie near all points of a window."""
        t, values = self.arrays()
        points = grid_BT.shape[1]
        x_BCT = np.zeros((len(grid_BT), self.columns, points), np.float32)
        covered_BT = np.ones(grid_BT.shape, np.bool_)
        first_B = np.searchsorted(t, grid_BT[:, 0] + _AT_THE_POINT * self.period_s, side="right") - 1
        for b, first in enumerate(first_B.tolist()):
            run = slice(first, first + points)
            inside = first >= 0 and run.stop <= len(t)
            if inside and np.abs(t[run] - grid_BT[b]).max() <= self._tolerance_s:
                x_BCT[b] = values[run].T
            else:
                x_BCT[b : b + 1], covered_BT[b : b + 1] = super().resample(grid_BT[b : b + 1])
        return x_BCT, covered_BT
