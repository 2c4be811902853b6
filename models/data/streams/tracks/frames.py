"""The frames (images, vectors, texts) that the windower still needs: one track for each modality. Pure NumPy.

A window holds the newest frame in [start, start + length). So of two frames that follow each other the first
is dropped as soon as the second arrives, unless a window ends between them: at most one frame is stored for
each end of an open window, and one more, whatever the rate.

Shapes: n frames, B windows, C channels, T points of a frame, V = C * T its values.
"""

import math
from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.data.streams.tracks.sample_arrivals import SampleArrivals
from protocol.tasks.task import Modality, Window

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of the frames of one modality that wait for slower modalities; see :attr:`FrameTrack.patience_s`."""
_ENDS: Final = np.arange(-1, 3)
"""Windows beside the computed one: divisions of times round."""


class FrameTrack(SampleArrivals):
    """Frames of one modality since the oldest open window."""

    gap_s = 0.0
    """A frame before the open windows is in none of them."""

    def __init__(self, modality: Modality, window: Window) -> None:
        super().__init__(modality.sample_values, 1.0 / modality.rate_hz)
        self._shape = (modality.channels, modality.points)
        self._stride_s, self._length_s = window.stride_s, window.length_s

    def clear(self) -> None:
        """Drop everything."""
        super().clear()
        self._t: list[float] = []
        self._rows: list[NDArray[np.float32]] = []

    @property
    def reach(self) -> float:
        """Stream time up to which windows can be closed: a frame half a period early is in its window."""
        return self.mark + self.period_s / 2

    @property
    def patience_s(self) -> float:
        """Stream seconds that another modality may be behind: those whose frames fit into ``MAX_BYTES``."""
        return max(0.0, MAX_BYTES / (4 * self.columns) * self._stride_s - self._length_s)

    def is_awaited(self, now: float, began: float, lateness_s: float) -> bool:
        """Whether it delivered recently; frames may be rare, and a rare one delays no window for long."""
        return now - (began if self._arrived is None else self._arrived) <= lateness_s

    def add(self, t: NDArray[np.float64], values: NDArray[np.float32], newest: float, now: float) -> None:
        """Add frames, ``values`` (n, V); those that no window can take are not stored.

        ``newest`` counts as received even if its frame came too late.
        """
        self._arrive(newest, now)
        all_t, first = np.unique(np.concatenate([self._t, t]), return_index=True)  # the first that arrived
        needed = self._needed(all_t)
        stored = len(self._t)
        rows = [
            # a row of its own: a view would hold its whole batch in memory
            self._rows[at] if at < stored else np.array(values[at - stored], np.float32)
            for at in first[needed].tolist()
        ]
        self._t, self._rows = all_t[needed].tolist(), rows

    def _needed(self, t: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of these frames, in the order of time, some window takes: it ends before the next one."""
        near = np.floor((t - self._length_s) / self._stride_s)
        start = (near[:, None] + _ENDS) * self._stride_s
        end = start + self._length_s  # as ``newest`` computes it, to the bit
        after = np.append(t[1:], math.inf)
        takes = (start <= t[:, None]) & (t[:, None] < end) & (end <= after[:, None])
        return np.asarray(takes.any(axis=1) | np.isinf(after))

    def times(self) -> NDArray[np.float64]:
        """The times of the stored frames, in their order."""
        return np.array(self._t, np.float64)

    def forget(self, before: float) -> None:
        """Drop frames that no window from ``before`` on needs."""
        first = bisect_left(self._t, before)
        if first:
            self._t, self._rows = self._t[first:], self._rows[first:]

    def newest(self, start_B: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """The newest frame in each window.

        Returns:
            ``x_BCT``, zeros without a frame, and ``covered_BT``: all points of a window, or none.
        """
        channels, points = self._shape
        x_BV = np.zeros((len(start_B), channels * points), np.float32)
        there_B = np.zeros(len(start_B), np.bool_)
        for b, start in enumerate(start_B.tolist()):
            at = bisect_left(self._t, start + self._length_s) - 1
            if at >= 0 and self._t[at] >= start:
                x_BV[b], there_B[b] = self._rows[at], True
        covered_BT = np.broadcast_to(there_B[:, None], (len(start_B), points))
        return x_BV.reshape(len(start_B), channels, points), covered_BT
