"""Robust folds, which bound the influence of a minority of devices (``task.robust``). NumPy only.

- ``clip``: each part of an update is scaled to at most ``clip_factor`` times the median norm of the round's
  parts, then averaged (norm bounding, Sun et al. 2019, section 4, with a bound by round).
- ``trimmed_mean`` and ``median``: value by value (Yin et al. 2018, definitions 1 and 2).

Every update has one vote, because peers claim their weights. All updates of a round are in one file
(:mod:`models.aggregation.spill_file`), read by slabs of coordinates: memory is O(model) for any number of
updates, and the result does not depend on their order. Tensors that only some devices send are folded over
these.

Shapes: N updates, V values of a slab.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Final, Protocol, Self

import numpy as np

from models.aggregation.exact_sums import MAX_ABS, FixedPointSum
from models.aggregation.spill_file import Spill
from models.aggregation.update_norms import part_of, sum_of_squares
from models.contract import FloatArray, Tensors
from models.tensors import check_tensor
from protocol.errors import Reason, Refused
from protocol.tasks.folding import Robust

SLAB_VALUES: Final = 1 << 20
"""Values in memory, of all updates: 4 MiB, and temporaries of sorting."""
Shapes = Mapping[str, tuple[int, ...]]


class DeltaFold(Protocol):
    """Folds model deltas; see :class:`models.aggregation.exact_sums.FixedPointSum`."""

    def add(self, tensors: Mapping[str, FloatArray], weight: int = 1) -> None:
        """Add an update; none of its tensors if one is refused."""

    def merge(self, other: Self) -> None:
        """Add another fold of the same tensors."""

    def mean(self) -> Tensors:
        """The round's delta of each tensor that was added at least once."""


def delta_fold(robust: Robust, shapes: Shapes, max_abs: float = MAX_ABS) -> DeltaFold:
    """The fold of the task's options."""
    folds: dict[str, Callable[[], DeltaFold]] = {
        "mean": lambda: FixedPointSum(shapes, max_abs),
        "clip": lambda: ClippedMean(shapes, max_abs, robust.clip_factor),
        "trimmed_mean": lambda: Coordinatewise(shapes, max_abs, lambda x_NV: trimmed_mean(x_NV, robust.trim)),
        "median": lambda: Coordinatewise(shapes, max_abs, median),
    }
    return folds[robust.fold]()


class _Kept:
    """Checked updates on disk: the base of the robust folds."""

    def __init__(self, shapes: Shapes, max_abs: float) -> None:
        self._shapes = dict(shapes)
        self._max_abs = float(max_abs)
        self._spill = Spill()

    def add(self, tensors: Mapping[str, FloatArray], weight: int = 1) -> None:
        """Add an update; the weight is only checked.

        Raises:
            Refused: an unknown name or wrong shape, a value that is not finite or too large, or a weight
                below 1.
        """
        if weight < 1:
            raise Refused(Reason.OUT_OF_BOUNDS, f"weight {weight}; weights are at least 1")
        for name, tensor in tensors.items():
            if name not in self._shapes:
                raise Refused(Reason.WRONG_TENSORS, f"tensor {name!r} is not in the model")
            check_tensor(name, tensor, self._shapes[name], self._max_abs)
        for name in sorted(tensors):
            self._spill.add(name, tensors[name])

    def _take(self, other: Self) -> None:
        if self._shapes != other._shapes or self._max_abs != other._max_abs:
            raise ValueError("only folds over the same tensors and bound can be merged")
        self._spill.merge(other._spill)


class Coordinatewise(_Kept):
    """Applies one rule to every coordinate."""

    def __init__(self, shapes: Shapes, max_abs: float, rule: Callable[[FloatArray], FloatArray]) -> None:
        super().__init__(shapes, max_abs)
        self._rule = rule

    def merge(self, other: Self) -> None:
        """Add another fold of the same tensors."""
        self._take(other)

    def mean(self) -> Tensors:
        """The rule's values by tensor, computed by slabs."""
        return {name: self._tensor(name) for name in self._shapes if self._spill.count(name)}

    def _tensor(self, name: str) -> FloatArray:
        out = np.empty(self._shapes[name], np.float32)
        flat, step = out.reshape(-1), max(1, SLAB_VALUES // self._spill.count(name))
        for start in range(0, flat.size, step):
            stop = min(flat.size, start + step)
            flat[start:stop] = self._rule(self._spill.slab(name, start, stop))
        return out


def median(x_NV: FloatArray) -> FloatArray:
    """The middle value of each column; for an even number the mean of the two middle values."""
    count = len(x_NV)
    x_NV.partition((count - 1) // 2, axis=0)
    low_V: FloatArray = x_NV[(count - 1) // 2]
    if count % 2:
        return low_V
    high_V = x_NV[count // 2 :].min(axis=0)
    middle_V: FloatArray = ((low_V.astype(np.float64) + high_V) / 2).astype(np.float32)
    return middle_V


def trimmed_mean(x_NV: FloatArray, trim: float) -> FloatArray:
    """The mean of each column without its smallest and largest values; at least one is left."""
    count = len(x_NV)
    cut = min(math.ceil(trim * count - 1e-9), (count - 1) // 2)
    x_NV.sort(axis=0)
    inner_NV = x_NV[cut : count - cut]
    total_V = np.zeros(x_NV.shape[1])
    for row_V in inner_NV:  # in sorted order, in float64: the sum does not depend on arrival
        total_V += row_V
    mean_V: FloatArray = (total_V / len(inner_NV)).astype(np.float32)
    return mean_V


class ClippedMean(_Kept):
    """The mean of updates whose parts are clipped to the round's median norm."""

    def __init__(self, shapes: Shapes, max_abs: float, factor: float) -> None:
        super().__init__(shapes, max_abs)
        self._factor = factor
        self._lengths: dict[str, list[float]] = {}
        self._length_of: dict[str, list[float]] = {}

    def add(self, tensors: Mapping[str, FloatArray], weight: int = 1) -> None:
        """Add an update."""
        super().add(tensors, weight)
        squares: dict[str, float] = {}
        for name in sorted(tensors):
            squares[part_of(name)] = squares.get(part_of(name), 0.0) + sum_of_squares(tensors[name])
        for part, square in squares.items():
            self._lengths.setdefault(part, []).append(math.sqrt(square))
        for name in tensors:
            self._length_of.setdefault(name, []).append(math.sqrt(squares[part_of(name)]))

    def merge(self, other: Self) -> None:
        """Add another fold of the same tensors."""
        self._take(other)
        for mine, theirs in ((self._lengths, other._lengths), (self._length_of, other._length_of)):
            for key, lengths in theirs.items():
                mine.setdefault(key, []).extend(lengths)

    def mean(self) -> Tensors:
        """Every update scaled to at most the limit of each part; the sum is in fixed point, free of order."""
        limits = {
            part: self._factor * statistics.median_low(lengths) for part, lengths in self._lengths.items()
        }
        return {name: self._tensor(name, limits[part_of(name)]) for name in self._length_of}

    def _tensor(self, name: str, limit: float) -> FloatArray:
        total = FixedPointSum({name: self._shapes[name]}, self._max_abs)
        for flat, length in zip(self._spill.arrays(name), self._length_of[name], strict=True):
            scale = np.float32(min(1.0, limit / length) if length > 0 else 1.0)
            total.add({name: (flat * scale).reshape(self._shapes[name])})
        return total.mean()[name]
