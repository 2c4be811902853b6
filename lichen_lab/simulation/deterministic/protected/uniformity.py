"""Whether bytes look like random ones: Pearson's chi-square over their values. NumPy."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

VALUES: Final = 256
UNIFORM: Final = 8.0
"""Standard deviations that uniform bytes stay below: more has a probability of 6e-16."""
_EXPECTED: Final = 10
"""Of each value; with fewer bytes their halves are counted, of which there are 16 values."""
Histogram = NDArray[np.int64]


def nothing() -> Histogram:
    """Counts of no bytes."""
    return np.zeros(VALUES, np.int64)


def histogram(data: bytes) -> Histogram:
    """How often each value occurs, (256,)."""
    return np.bincount(np.frombuffer(data, np.uint8), minlength=VALUES).astype(np.int64)


def deviation(count_V: Histogram) -> float:
    """How far counts are from those of uniform bytes, in standard deviations of chi-square.

    The cube root of chi-square over its degrees of freedom is close to normal (Wilson and Hilferty 1931).

    Args:
        count_V: (256,), of :func:`histogram`.
    """
    total = int(count_V.sum())
    if not total:
        return 0.0
    if total < _EXPECTED * VALUES:
        table = count_V.reshape(16, 16)
        count_V, total = table.sum(axis=0) + table.sum(axis=1), 2 * total
    freedom, expected = count_V.size - 1, total / count_V.size
    square = float(((count_V - expected) ** 2).sum()) / expected
    spread = 2.0 / (9.0 * freedom)
    return (math.cbrt(square / freedom) - (1.0 - spread)) / math.sqrt(spread)
