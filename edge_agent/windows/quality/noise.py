"""White noise in a sensor's windows: its level, a test of whiteness, and the sensor's normal level.

The variance of white noise from differences of order n: their weights have C(2n, n) as sum of squares, and
the median of chi-squared with one degree of freedom is 0.4549, so s_n = median (n-th difference)^2 / (C(2n,
n) * 0.4549), mean over channels. The median ignores short events (a heel strike). The sixth difference passes
little but the upper third of the frequencies; the second passes much more. In white noise s_6 = s_2; in a
signal of motion s_6 is far below s_2.
"""

from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.quality.checks import MIN_POINTS, Bools, Floats, Values

_MEDIAN: Final = 0.4549
_REFRESH: Final = 16
_QUARTILE: Final = 0.25
_SLOPE_SHARE: Final = 0.5
_ENTERS: Final = 2


def levels(x_BCT: Values) -> tuple[Floats, Floats, Floats]:
    """Per window s_2, s_6 and the variance, as means over channels: three times (B,)."""
    x = x_BCT.astype(np.float64)
    second = np.diff(x, n=2, axis=2)
    sixth = np.diff(second, n=4, axis=2)
    return _level(second, 2), _level(sixth, 6), np.asarray(x.var(axis=2).mean(axis=1))


def _level(difference_BCT: Floats, order: int) -> Floats:
    squares = np.square(difference_BCT)
    middle = squares.shape[2] // 2
    median_BC = np.partition(squares, middle, axis=2)[:, :, middle]
    return np.asarray(median_BC.mean(axis=1) / (comb(2 * order, order) * _MEDIAN))


class NoiseHistory:
    """The normal noise of one sensor: ``floor + slope * variance``, over its own past.

    Both are lower quartiles (floor: of all windows, slope: of the half with more variance), because noise
    only ever adds: the fit holds while a quarter of the past is clean.
    """

    def __init__(self, size: int, minimum: int) -> None:
        self._noise = np.empty(size)
        self._variance = np.empty(size)
        self._minimum = minimum
        self._entered = 0
        self._seen = 0
        self._noisy = 0
        self._normal: tuple[float, float] | None = None

    def excess(self, second: float, sixth: float, variance: float, white: float, limit: float) -> float:
        """Ratio of one window's white noise to the normal level; remembers the window.

        Args:
            second: s_2.
            sixth: s_6.
            variance: of the window.
            white: s_6 / s_2 from which it counts as white.
            limit: excess from which it is noisy.

        Returns:
            s_6 / (floor + slope * variance / 2); 0 if it is not white, or the past is too short.
        """
        if variance <= 0 or sixth <= 0:
            return 0.0
        motion = max(variance - sixth, 0.0)
        if self._entered >= self._minimum and (self._normal is None or self._seen % _REFRESH == 0):
            self._normal = self._fit()
        self._seen += 1
        excess = 0.0
        if self._normal is not None and sixth >= white * second:
            floor, slope = self._normal
            # Half the slope: the whiteness test has already separated most motion from noise.
            excess = sixth / (floor + _SLOPE_SHARE * slope * motion)
        self._noisy += excess >= limit
        if excess < limit or self._noisy % _ENTERS == 0:
            at = self._entered % len(self._noise)
            self._noise[at], self._variance[at] = sixth, motion
            self._entered += 1
        return excess

    def _fit(self) -> tuple[float, float]:
        count = min(self._entered, len(self._noise))
        noise, variance = self._noise[:count], self._variance[:count]
        lively = variance > np.median(variance)
        floor = _quartile(noise)
        if not lively.any():
            return floor, 0.0
        return floor, _quartile(np.maximum(noise[lively] - floor, 0.0) / variance[lively])


def _quartile(values: NDArray[np.float64]) -> float:
    at = int(_QUARTILE * (len(values) - 1))
    return float(np.partition(values, at)[at])


def excesses(history: NoiseHistory, x_BCT: Values, sound_B: Bools, white: float, limit: float) -> Floats:
    """:meth:`NoiseHistory.excess` of each sound window in time order; 0 for the others.

    Args:
        history: of the sensor.
        x_BCT: the windows.
        sound_B: covered without a gap, not stuck, not clipped: a constant value looks quiet.
        white: see there.
        limit: see there.
    """
    excess_B = np.zeros(len(x_BCT))
    if x_BCT.shape[2] < MIN_POINTS or not sound_B.any():
        return excess_B
    found = zip(
        np.flatnonzero(sound_B), *(level_B.tolist() for level_B in levels(x_BCT[sound_B])), strict=True
    )
    for b, second, sixth, variance in found:
        excess_B[b] = history.excess(second, sixth, variance, white, limit)
    return excess_B
