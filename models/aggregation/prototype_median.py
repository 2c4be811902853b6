"""Robust folding of class prototypes: the geometric median of each class, over the devices that have it.

The geometric median minimises the sum of distances to all rows: fewer than half of the devices cannot move it
far. Computed by the smoothed Weiszfeld iteration (Pillutla et al., Robust Aggregation for
Federated Learning, algorithm 2), block by block from disk: memory is O(rows of a block), not O(devices).

Shapes: K classes, D features, N rows of one class, R rows of one update.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from models.aggregation.exact_sums import MAX_ABS, IntArray, RowSum
from models.aggregation.spill_file import Spill
from models.contract import FloatArray
from models.partials import Arrays, FoldPart, Slice, Summed
from models.tensors import check_tensor
from protocol.errors import Reason, Refused
from protocol.tasks.folding import Robust

ITERATIONS: Final = 64
TOLERANCE: Final = 1e-7
"""The iteration ends at a step shorter than this share of the rows' spread."""
SMOOTHING: Final = 1e-6
"""Minimum distance, as a share of the spread, which bounds the weight of a row at the current point."""
_BLOCK_ROWS: Final = 4096

Wide = NDArray[np.float64]


class RowFold(FoldPart, Protocol):
    """Folds the rows of a table; see :class:`models.aggregation.exact_sums.RowSum`."""

    count_K: IntArray

    def add(self, name: str, index_R: IntArray, values_RD: FloatArray) -> None:
        """Add an update's rows."""

    def mean(self) -> FloatArray:
        """The table's rows; zeros without updates."""


def row_fold(robust: Robust, rows: int, columns: int, max_abs: float = MAX_ABS) -> RowFold:
    """The fold of the task's options."""
    if robust.prototypes == "geometric_median":
        return GeometricMedian(rows, columns, max_abs)
    return RowSum(rows, columns, max_abs)


class GeometricMedian:
    """See the module; the interface of :class:`models.aggregation.exact_sums.RowSum`."""

    sliced: ClassVar[bool] = True

    def __init__(self, rows: int, columns: int, max_abs: float = MAX_ABS) -> None:
        self._rows, self._columns, self._max_abs = rows, columns, float(max_abs)
        self.count_K: IntArray = np.zeros(rows, np.int64)
        """Number of updates with the row."""
        self._spill = Spill()
        self._cut, self._ignores = Slice(0, 1), False
        self._absorbed: dict[int, FloatArray] = {}
        """Rows that other processes have computed."""

    def add(self, name: str, index_R: IntArray, values_RD: FloatArray) -> None:
        """Store rows.

        Raises:
            Refused: a row is repeated or unknown, the shape is wrong, or a value is not finite or too large.
        """
        index = [int(i) for i in index_R]
        if len(set(index)) != len(index) or any(not 0 <= i < self._rows for i in index):
            raise Refused(
                Reason.WRONG_TENSORS, f"tensor {name!r}: rows {index} must be distinct and below {self._rows}"
            )
        check_tensor(name, values_RD, (len(index), self._columns), self._max_abs)
        for i, row_D in zip(index, values_RD, strict=True):
            if self._ignores or not self._cut.has(i):
                continue
            self._spill.add(str(i), row_D)
            self.count_K[i] += 1

    def merge(self, other: Self) -> None:
        """Add another fold of the same table.

        Raises:
            ValueError: the shapes or bounds differ (a bug).
        """
        if (self._rows, self._columns, self._max_abs) != (other._rows, other._columns, other._max_abs):
            raise ValueError("only row folds of one shape and bound can be merged")
        self._spill.merge(other._spill)
        self.count_K += other.count_K

    def restrict(self, cut: Slice | None) -> None:
        """See :class:`models.partials.FoldPart`: a slice has whole rows."""
        self._cut, self._ignores = cut or self._cut, cut is None

    def partial(self) -> Arrays:
        """The computed rows of the slice, and how many updates have them."""
        if self._ignores:
            return {}
        found = np.flatnonzero(self.count_K)
        return {"rows": found, "counts": self.count_K[found], "values": self.mean()[found]}

    def sums(self) -> Mapping[str, Summed]:
        """None: a median compares updates."""
        return {}

    def absorb(self, partial: Arrays) -> None:
        """Take the rows of another slice of the same updates."""
        if partial:
            self.count_K[partial["rows"]] = partial["counts"]
            self._absorbed |= dict(zip(partial["rows"].tolist(), partial["values"], strict=True))

    def mean(self) -> FloatArray:
        """``(K, D)`` float32: the geometric median of each row; zeros without updates."""
        out_KD = np.zeros((self._rows, self._columns), np.float32)
        for k in np.flatnonzero(self.count_K).tolist():
            out_KD[k] = self._absorbed[k] if k in self._absorbed else self._median_of(k)
        return out_KD

    def _blocks(self, k: int) -> Iterable[Wide]:
        """Rows of a class as an iterable of blocks that can be repeated; one block is in memory."""
        again = _Again(self._spill, str(k))
        return again if self.count_K[k] > _BLOCK_ROWS else list(again)

    def _median_of(self, k: int) -> Wide:
        """The iteration, starting at the mean; a fixed order of blocks makes sums reproducible."""
        blocks, at_D = self._blocks(k), np.zeros(self._columns)
        for block_ND in blocks:
            at_D += block_ND.sum(axis=0)
        at_D /= float(self.count_K[k])
        spread = max(float(_distances(block_ND, at_D).max()) for block_ND in blocks)
        if spread == 0:
            return at_D
        for _ in range(ITERATIONS):
            new_D = _step(blocks, at_D, SMOOTHING * spread)
            moved, at_D = float(np.sqrt(np.square(new_D - at_D).sum())), new_D
            if moved <= TOLERANCE * spread:
                break
        return at_D


@dataclass(frozen=True)
class _Again:
    """Blocks of rows, read anew each time."""

    spill: Spill
    name: str

    def __iter__(self) -> Iterator[Wide]:
        rows = self.spill.canonical(self.name)
        while block := list(islice(rows, _BLOCK_ROWS)):
            yield np.stack(block).astype(np.float64)


def _distances(block_ND: Wide, at_D: Wide) -> Wide:
    found_N: Wide = np.sqrt(np.square(block_ND - at_D).sum(axis=1))
    return found_N


def _step(blocks: Iterable[Wide], at_D: Wide, least: float) -> Wide:
    """The mean of all rows, weighted by the inverse distance."""
    total_D, weight = np.zeros_like(at_D), 0.0
    for block_ND in blocks:
        share_N1 = 1.0 / np.maximum(_distances(block_ND, at_D), least)[:, None]
        total_D += (share_N1 * block_ND).sum(axis=0)
        weight += float(share_N1.sum())
    new_D: Wide = total_D / weight
    return new_D
