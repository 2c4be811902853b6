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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Protocol, Self

import numpy as np

from models.aggregation.exact_sums import MAX_ABS, FixedPointSum
from models.aggregation.spill_file import Spill
from models.aggregation.update_norms import part_of, sum_of_squares
from models.contract import FloatArray, Tensors
from models.partials import Arrays, FoldPart, Slice, Summed
from models.tensors import check_tensor
from protocol.errors import Reason, Refused
from protocol.tasks.folding import Robust

SLAB_VALUES: Final = 1 << 20
"""Values in memory, of all updates: 4 MiB, and temporaries of sorting."""
Shapes = Mapping[str, tuple[int, ...]]


class DeltaFold(FoldPart, Protocol):
    """Folds model deltas; see :class:`models.aggregation.exact_sums.FixedPointSum`."""

    def add(self, tensors: Mapping[str, FloatArray], weight: int = 1) -> None:
        """Add an update; none of its tensors if one is refused."""

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


class _Kept(ABC):
    """Checked updates on disk: the base of the robust folds.

    A slice is one of all values of all tensors, in the order of their names: a tensor may be in several.
    """

    sliced: ClassVar[bool] = True

    def __init__(self, shapes: Shapes, max_abs: float) -> None:
        self._shapes = dict(shapes)
        self._max_abs = float(max_abs)
        self._spill = Spill()
        self._counts: dict[str, int] = {}
        """By tensor, the number of updates that have it."""
        self._cut, self._ignores = Slice(0, 1), False
        self._ranges = self._in_slice()
        self._absorbed: dict[int, Arrays] = {}
        """Partial results of slices that other processes have computed, by index."""

    def _in_slice(self) -> dict[str, tuple[int, int]]:
        """By tensor, start and stop of its values in the slice."""
        sizes = {name: math.prod(self._shapes[name]) for name in sorted(self._shapes)}
        first, last = self._cut.bounds(sum(sizes.values()))
        found, at = {}, 0
        for name, size in sizes.items():
            found[name] = min(max(first - at, 0), size), min(max(last - at, 0), size)
            at += size
        return found

    def restrict(self, cut: Slice | None) -> None:
        """See :class:`models.partials.FoldPart`."""
        self._cut, self._ignores = cut or self._cut, cut is None
        self._ranges = self._in_slice()

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
        if not self._ignores:
            self._keep(tensors)

    def _keep(self, tensors: Mapping[str, FloatArray]) -> None:
        """Store the slice of a checked update."""
        for name in sorted(tensors):
            start, stop = self._ranges[name]
            self._spill.add(name, np.ascontiguousarray(tensors[name]).reshape(-1)[start:stop])
            self._counts[name] = self._counts.get(name, 0) + 1

    def merge(self, other: Self) -> None:
        """Add another fold of the same tensors.

        Raises:
            ValueError: the tensors, bounds or cuts differ (a bug).
        """
        mine, theirs = (self._shapes, self._max_abs, self._cut), (other._shapes, other._max_abs, other._cut)
        if mine != theirs:
            raise ValueError("only folds over the same tensors, bound and cut can be merged")
        self._spill.merge(other._spill)
        for name, count in other._counts.items():
            self._counts[name] = self._counts.get(name, 0) + count

    def partial(self) -> Arrays:
        """The slice's values, and which tensors any update has."""
        if self._ignores:
            return {}
        values = [np.zeros(0, np.float32)]
        for name, (start, stop) in self._ranges.items():
            values.append(self._values(name) if name in self._counts else np.zeros(stop - start, np.float32))
        return {
            "slice": np.array([self._cut.index, self._cut.of]),
            "sent": np.array([name in self._counts for name in self._ranges], np.bool_),
            "values": np.concatenate(values),
        }

    def sums(self) -> Mapping[str, Summed]:
        """None: robust folds compare updates."""
        return {}

    def absorb(self, partial: Arrays) -> None:
        """Take another slice of the same updates."""
        if partial:
            self._absorbed[int(partial["slice"][0])] = partial

    def mean(self) -> Tensors:
        """The rule's values, by tensor that any update has.

        Raises:
            ValueError: of the slices that other processes compute, one is missing (a bug).
        """
        if not self._absorbed:
            return {name: self._values(name).reshape(self._shapes[name]) for name in self._counts}
        slices = [self._absorbed[index] for index in sorted(self._absorbed)]
        if any(int(one["slice"][1]) != len(slices) for one in slices):
            raise ValueError(f"a slice of a robust fold is missing: there are {sorted(self._absorbed)}")
        whole, means, at = np.concatenate([one["values"] for one in slices]), {}, 0
        for name, sent in zip(sorted(self._shapes), slices[0]["sent"], strict=True):
            size = math.prod(self._shapes[name])
            if sent:
                means[name] = whole[at : at + size].reshape(self._shapes[name])
            at += size
        return means

    @abstractmethod
    def _values(self, name: str) -> FloatArray:
        """The result for the kept values of a tensor that an update has, flat."""


class Coordinatewise(_Kept):
    """Applies one rule to every coordinate."""

    def __init__(self, shapes: Shapes, max_abs: float, rule: Callable[[FloatArray], FloatArray]) -> None:
        super().__init__(shapes, max_abs)
        self._rule = rule

    def _values(self, name: str) -> FloatArray:
        """Computed by slabs."""
        first, last = self._ranges[name]
        out, step = np.empty(last - first, np.float32), max(1, SLAB_VALUES // self._counts[name])
        for start in range(0, out.size, step):
            stop = min(out.size, start + step)
            out[start:stop] = self._rule(self._spill.slab(name, start, stop))
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

    def _keep(self, tensors: Mapping[str, FloatArray]) -> None:
        """Store the slice of an update, and the norms of all of it."""
        super()._keep(tensors)
        squares: dict[str, float] = {}
        for name in sorted(tensors):
            squares[part_of(name)] = squares.get(part_of(name), 0.0) + sum_of_squares(tensors[name])
        for part, square in squares.items():
            self._lengths.setdefault(part, []).append(math.sqrt(square))
        for name in tensors:
            self._length_of.setdefault(name, []).append(math.sqrt(squares[part_of(name)]))

    def merge(self, other: Self) -> None:
        """Add another fold of the same tensors."""
        super().merge(other)
        for mine, theirs in ((self._lengths, other._lengths), (self._length_of, other._length_of)):
            for key, lengths in theirs.items():
                mine.setdefault(key, []).extend(lengths)

    def _values(self, name: str) -> FloatArray:
        """Every update scaled to at most the limit of each part; the sum is in fixed point, free of order."""
        limit = self._factor * statistics.median_low(self._lengths[part_of(name)])
        start, stop = self._ranges[name]
        total = FixedPointSum({name: (stop - start,)}, self._max_abs)
        for flat, length in zip(self._spill.arrays(name), self._length_of[name], strict=True):
            scale = np.float32(min(1.0, limit / length) if length > 0 else 1.0)
            total.add({name: flat * scale})
        return total.mean()[name]
