"""Converts stamps to the agent's time axis, which is Unix time by the wall clock.

The kernel stamps samples with one of its clocks; a device without stamps gives blocks whose last sample is
about as old as the read. NumPy and arithmetic only; the clocks are parameters.
"""

import time
from collections.abc import Callable, MutableMapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

CLOCKS: Final[dict[str, int]] = {
    "realtime": 0,
    "monotonic": 1,
    "monotonic_raw": 4,
    "realtime_coarse": 5,
    "monotonic_coarse": 6,
    "boottime": 7,
    "tai": 11,
}
"""``current_timestamp_clock`` of IIO -> Linux's number of that clock (clock_gettime(2))."""
SLEW_S: Final = 0.002
"""The offset is updated once the wall clock has moved this far against the other clock: a slew or a step."""
_TRIES: Final = 5
STEP_S: Final = 0.1
"""From here it is a step, and is counted."""
ODD_S: Final = 60.0
"""A stamp further than this from the read is invalid: the driver sets none, or garbage."""


class ClockMapping:
    """Converts stamps of one of the kernel's clocks to Unix time.

    Args:
        clock: a name of :data:`CLOCKS`.
        wall: Unix seconds.
        counters: ``clock_steps`` and ``odd_stamps`` count here.
        read: the kernel's clock in seconds, by number.
    """

    def __init__(
        self,
        clock: str,
        wall: Callable[[], float],
        counters: MutableMapping[str, float],
        read: Callable[[int], float] = time.clock_gettime,
    ) -> None:
        self._id = CLOCKS[clock]
        self._wall = wall
        self._read = read
        self._counters = counters
        self._offset: float | None = None

    def unix(self, stamps_n: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Unix seconds of stamps in ns; None if they cannot be stamps of this clock."""
        now, offset, doubt = self._compare()
        moved = 0.0 if self._offset is None else abs(offset - self._offset)
        if self._offset is None or moved > SLEW_S + doubt:
            self._offset = offset
        if moved > STEP_S + doubt:
            self._counters["clock_steps"] = self._counters.get("clock_steps", 0) + 1
        t = stamps_n.astype(np.float64) * 1e-9
        if len(t) and (np.abs(t - now) > ODD_S).any():
            self._counters["odd_stamps"] = self._counters.get("odd_stamps", 0) + len(t)
            return None
        return t + self._offset

    def _compare(self) -> tuple[float, float, float]:
        """The kernel's clock now, the wall clock's lead over it, and the uncertainty of that lead (s).

        This thread may be suspended between two readings; the shortest of a few attempts is used.
        """
        attempts = []
        for _ in range(_TRIES):
            before, wall, after = self._read(self._id), self._wall(), self._read(self._id)
            middle = (before + after) / 2
            attempts.append((after - before, middle, wall - middle))
            if after - before < SLEW_S / 10:
                break
        duration, now, offset = min(attempts)
        return now, offset, duration


class BlockTimestamps:
    """Times of samples in blocks without stamps: evenly spaced, the last one as old as the read.

    A second-order loop follows the true rate, which is some per cent from the nominal one, and smooths the
    jitter of the reads.

    Args:
        rate_hz: nominal.
    """

    _GAIN: Final = 0.1
    _RATE_GAIN: Final = 0.01

    def __init__(self, rate_hz: float) -> None:
        self._nominal = self._period = 1.0 / rate_hz
        self._end: float | None = None

    def times(self, n: int, read: float) -> NDArray[np.float64]:
        """Times of ``n`` >= 1 samples that were read at ``read`` (s)."""
        before = read - n * self._period if self._end is None else self._end
        error = read - (before + n * self._period)
        if abs(error) > max(0.5, 4 * n * self._period):  # a pause, or a clock that was set: start again
            self._period = self._nominal
            before, error = read - n * self._period, 0.0
        step = self._period + max(self._GAIN * error / n, -self._period / 2)
        moved = self._period + self._RATE_GAIN * error / n
        self._period = float(np.clip(moved, 0.8 * self._nominal, 1.25 * self._nominal))
        self._end = before + n * step
        return np.asarray(before + step * np.arange(1, n + 1), np.float64)
