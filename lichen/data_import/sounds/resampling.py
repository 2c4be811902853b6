"""Sound at another rate: a low-pass filter of windowed sinc functions, a block at a time. Pure.

Shapes: n samples, C channels, K samples of the output, H taps.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

_ZEROS: Final = 24
"""Zero crossings of the filter on each side: over 70 dB of attenuation beyond the edge."""
_EDGE: Final = 0.94
"""Of half the lower rate: the filter's edge, a little below what the output can hold."""
_BETA: Final = 8.0
_AT_ONCE: Final = 1 << 14


class Resampler:
    """Push blocks, then finish; output sample k is at time ``k / rate_out``.

    Args:
        rate_in: samples a second of what is pushed.
        rate_out: of the output.
        channels: C.
    """

    def __init__(self, rate_in: int, rate_out: int, channels: int) -> None:
        common = math.gcd(rate_in, rate_out)
        self._up, self._down = rate_out // common, rate_in // common
        cutoff = _EDGE * min(1.0, rate_out / rate_in)
        self._half = math.ceil(_ZEROS / cutoff)
        taps = np.arange(-self._half + 1, self._half + 1)
        away = np.arange(self._up)[:, None] / self._up - taps
        inside = np.clip(1 - np.square(away / (self._half + 1)), 0, None)
        filters = cutoff * np.sinc(cutoff * away) * np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA)
        self._filters = (filters / filters.sum(axis=1, keepdims=True)).astype(np.float32)
        """By phase, the weights of the samples around a place of the output: ``(up, 2 * half)``."""
        self._rest = np.zeros((self._half, channels), np.float32)  # silence before the first sample
        self._first = -self._half
        self._next = 0

    def push(self, x_nC: NDArray[np.float32]) -> NDArray[np.float32]:
        """Add samples; returns the output (K, C) that they complete."""
        self._rest = np.concatenate([self._rest, x_nC])
        end = self._first + len(self._rest)
        # output k needs the samples up to floor(k * down / up) + half
        last = ((end - self._half) * self._up - 1) // self._down
        return self._outputs(last + 1)

    def finish(self) -> NDArray[np.float32]:
        """The rest of the output, with silence after the last sample."""
        end = self._first + len(self._rest)
        count = -(-end * self._up // self._down)
        self._rest = np.concatenate([self._rest, np.zeros((self._half + 1, self._rest.shape[1]), np.float32)])
        return self._outputs(count)

    def _outputs(self, until: int) -> NDArray[np.float32]:
        parts = [self._block(k, min(k + _AT_ONCE, until)) for k in range(self._next, until, _AT_ONCE)]
        self._next = max(self._next, until)
        keep = self._next * self._down // self._up - self._half + 1 - self._first
        if keep > 0:
            self._rest, self._first = self._rest[keep:], self._first + keep
        return np.concatenate(parts) if parts else np.empty((0, self._rest.shape[1]), np.float32)

    def _block(self, begin: int, end: int) -> NDArray[np.float32]:
        place = np.arange(begin, end, dtype=np.int64) * self._down
        first = place // self._up - self._half + 1 - self._first
        windows = np.lib.stride_tricks.sliding_window_view(self._rest, 2 * self._half, axis=0)[first]
        found: NDArray[np.float32] = np.einsum("kch,kh->kc", windows, self._filters[place % self._up])
        return found
