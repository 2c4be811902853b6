"""Checks of the quality indicator for images, vectors and texts. NumPy.

Each takes windows ``x_BCT`` that hold one frame, and returns a penalty from 0 to 1 per window;
:mod:`edge_agent.windows.quality.meter` explains them.

Shapes: B windows, C channels, T points of a frame, H rows and W columns of an image.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.quality.checks import FOUND, Floats, Values, found
from protocol.tasks.task import Modality

DARKEST: Final = 0.0
BRIGHTEST: Final = 255.0
"""Values of an image, as a camera gives them, if the task has no ``low`` and ``high``."""
SATURATED: Final = 0.98
"""Share of the range from which a value counts as saturated."""
_BRIGHT: Final = 0.99
"""The value below which this share of an image lies: a few hot pixels make no light."""
_LONGEST: Final = 128
"""Rows or columns that an image is reduced to before its sharpness is measured: noise is no detail."""
_SMALLEST: Final = 8


def levels(modality: Modality, x_BCT: Values) -> Values:
    """Values as shares of the modality's range, from 0 (dark) to 1."""
    low = DARKEST if modality.low is None else modality.low
    high = BRIGHTEST if modality.high is None else modality.high
    return (x_BCT - np.float32(low)) / np.float32(max(high - low, 1e-9))


def dark(level_BCT: Values, limit: float) -> Floats:
    """Nearly all values lie under ``limit`` of the range."""
    flat_BN = level_BCT.reshape(len(level_BCT), -1)
    at = min(flat_BN.shape[1] - 1, int(_BRIGHT * flat_BN.shape[1]))
    bright_B = np.partition(flat_BN, at, axis=1)[:, at].astype(np.float64)
    return _below(np.maximum(bright_B, 0.0), limit)


def overexposed(level_BCT: Values, share: float) -> Floats:
    """The share of saturated values."""
    return found((level_BCT >= SATURATED).mean(axis=(1, 2)), share)


def constant(level_BCT: Values, limit: float) -> Floats:
    """No value differs from another by more than ``limit`` of the range."""
    span_B = level_BCT.max(axis=(1, 2)) - level_BCT.min(axis=(1, 2))
    return np.where(span_B <= limit, 1.0, 0.0)


def blurred(level_BCT: Values, size: tuple[int, int], limit: float) -> Floats:
    """Little detail: the variance of the Laplacian, over that of the image, under ``limit``.

    Contrast and light do not count. Of an image with fewer than 8 rows or columns nothing is said.
    """
    gray_BHW = _reduced(level_BCT.mean(axis=1).reshape(-1, *size))
    if min(gray_BHW.shape[1:]) < _SMALLEST:
        return np.zeros(len(level_BCT))
    beside_BHW = gray_BHW[:, 1:-1, :-2] + gray_BHW[:, 1:-1, 2:]
    above_BHW = gray_BHW[:, :-2, 1:-1] + gray_BHW[:, 2:, 1:-1]
    laplacian_BHW = beside_BHW + above_BHW - 4 * gray_BHW[:, 1:-1, 1:-1]
    detail_B = laplacian_BHW.var(axis=(1, 2), dtype=np.float64)
    variance_B = gray_BHW.var(axis=(1, 2), dtype=np.float64)
    sharp_B = np.divide(detail_B, variance_B, out=np.full(len(detail_B), np.inf), where=variance_B > 0)
    return _below(sharp_B, limit)


def _below(value_B: Floats, limit: float) -> Floats:
    """Penalty 0 from the limit on, rising from FOUND below it to 1 at 0; a limit of 0 switches it off."""
    share_B = value_B / limit if limit > 0 else np.ones_like(value_B)
    return np.where(share_B < 1, 1.0 - (1.0 - FOUND) * share_B, 0.0)


def _reduced(gray_BHW: Values) -> Values:
    """Means of blocks of pixels, so that the longer side has at most ``_LONGEST``."""
    rows, columns = gray_BHW.shape[1:]
    by = math.ceil(max(rows, columns) / _LONGEST)
    if by == 1:
        return gray_BHW
    whole = gray_BHW[:, : rows // by * by, : columns // by * by]
    blocks = whole.reshape(len(gray_BHW), rows // by, by, columns // by, by)
    return np.asarray(blocks.mean(axis=(2, 4)), np.float32)


def empty(x_BCT: Values) -> Floats:
    """A text without any n-gram."""
    return np.where((x_BCT == 0).all(axis=(1, 2)), 1.0, 0.0)


class FrozenFrames:
    """Finds a source that repeats one frame; remembers that frame.

    Args:
        length_s: of a window. The windows of one frame begin within so many seconds; equal frames in windows
            that begin further apart are two frames.
        limit_s: equal frames are reported from so many seconds.
    """

    def __init__(self, length_s: float, limit_s: float) -> None:
        self._limit_s = max(length_s, limit_s)
        self._frame: Values | None = None
        self._since = 0.0

    def penalty(self, x_BCT: Values, start_B: NDArray[np.float64]) -> Floats:
        """Penalty of each window, in time order."""
        held_B = np.zeros(len(start_B))
        for b, start in enumerate(start_B.tolist()):
            if self._frame is None or start < self._since or not np.array_equal(self._frame, x_BCT[b]):
                self._frame, self._since = x_BCT[b].copy(), start
            held_B[b] = start - self._since
        over_B = held_B / self._limit_s
        return np.where(over_B >= 1, FOUND + (1 - FOUND) * np.minimum(1.0, over_B - 1), 0.0)
