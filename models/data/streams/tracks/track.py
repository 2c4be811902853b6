"""The samples that the windower still needs: one track for each modality. Pure NumPy.

Shapes: n samples, B windows, C channels, T grid points.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.data.streams.tracks.sample_arrivals import SampleArrivals
from protocol.tasks.task import Modality

_PERIODS: Final = 1.5
ABSURD: Final = 1e18
"""No sensor reads more; its square would overflow in the network, and one such window would damage a round.
"""


class Track(SampleArrivals):
    """Samples of one modality since the oldest open window."""

    def __init__(self, modality: Modality, max_gap_s: float) -> None:
        super().__init__(modality.channels, 1.0 / modality.rate_hz)
        self.gap_s = max(max_gap_s, _PERIODS * self.period_s)

    def clear(self) -> None:
        """Drop everything."""
        super().clear()
        self._t: list[NDArray[np.float64]] = []
        self._values: list[NDArray[np.float32]] = []

    @property
    def reach(self) -> float:
        """Stream time up to which grid points can be filled."""
        return self.mark + self.period_s

    @property
    def beside_s(self) -> float:
        """How far beside a window a sample of its content may lie, if the window has samples at its edges."""
        return self.gap_s - 0.5 * self.period_s

    def add(self, t: NDArray[np.float64], values: NDArray[np.float32], newest: float, now: float) -> None:
        """Add samples; ``newest`` counts as received even if its sample came too late to be stored."""
        self._arrive(newest, now)
        if len(t):
            self._t.append(t)
            self._values.append(values)

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """All samples in the order of time; of samples with the same time the first that arrived."""
        if not self._t:
            return np.empty(0, np.float64), np.empty((0, self.columns), np.float32)
        if len(self._t) > 1 or not increases(self._t[0]):
            t, values = np.concatenate(self._t), np.concatenate(self._values)
            if not increases(t):
                order = np.argsort(t, kind="stable")
                t, values = t[order], values[order]
                first = np.diff(t, prepend=-math.inf) > 0
                t, values = t[first], values[first]
            self._t, self._values = [t], [values]
        return self._t[0], self._values[0]

    def times(self) -> NDArray[np.float64]:
        """The times of all samples, in their order."""
        return self.arrays()[0]

    def forget(self, before: float) -> None:
        """Drop samples that no window from ``before`` on needs; one left neighbour is kept."""
        t, values = self.arrays()
        first = max(0, int(np.searchsorted(t, before - self.gap_s)) - 1)
        if first:
            self._t, self._values = [t[first:]], [values[first:]]

    def resample(self, grid_BT: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Values at the grid's times.

        Returns:
            ``x_BCT`` and ``covered_BT``: covered where both neighbours are at most ``gap_s`` apart, or one is
            within half a period. Other points hold the nearest value, for the network.
        """
        t, values = self.arrays()
        if not len(t):
            shape = (grid_BT.shape[0], self.columns, grid_BT.shape[1])
            return np.zeros(shape, np.float32), np.zeros(grid_BT.shape, np.bool_)
        right = np.searchsorted(t, grid_BT)
        left = np.maximum(right - 1, 0)
        right = np.minimum(right, len(t) - 1)
        span = t[right] - t[left]
        to_left, to_right = grid_BT - t[left], t[right] - grid_BT
        near = np.minimum(np.abs(to_left), np.abs(to_right)) <= self.period_s / 2 + 1e-9
        between = (span > 0) & (span <= self.gap_s)
        linear = np.divide(to_left, span, out=np.zeros_like(span), where=span > 0)
        weight = np.where(between, linear, linear >= 0.5)  # noqa: PLR2004 - the nearer of two
        v_left = values[left]
        x_BTC = v_left + weight[..., None].astype(np.float32) * (values[right] - v_left)
        return np.ascontiguousarray(x_BTC.transpose(0, 2, 1)), between | near


def increases(t: NDArray[np.float64]) -> bool:
    """Whether each time is later than the one before."""
    return bool((t[1:] > t[:-1]).all())
