"""Sums of tensors that do not depend on order or grouping, to the bit (docs/adr/0003-fold-at-close.md).

NumPy only. Floating-point addition is not associative; integer addition is. Every value is rounded to a
64-bit integer in steps of 2**-24 (finer than float32 near 1), multiplied by its integer weight and added.
Overflow cannot happen, because the sum of ``|value| * weight`` is bounded before. (Secure aggregation needs
the same form, ADR 55.)
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray, Tensors
from models.partials import Arrays, Slice, Summed
from models.tensors import check_tensor, check_tensors
from protocol.errors import Reason, Refused
from protocol.frames.together import groups_of, joined

FRACTION_BITS: Final = 24
MAX_ABS: Final = 1024.0
"""Default bound of a value; then a round's weights may sum to ``2**28``."""
_BLOCK: Final = 1 << 16
HEADROOM_BITS: Final = 62
IntArray = NDArray[np.int64]


def _add_scaled(total: IntArray, values: FloatArray, weight: int) -> None:
    """``total += weight * round(values * 2**24)``, in blocks: temporaries stay at 0.75 MiB at any size."""
    flat_total, flat = total.reshape(-1), np.ascontiguousarray(values, np.float32).reshape(-1)
    size = min(flat.size, _BLOCK)
    floats, integers = np.empty(size, np.float32), np.empty(size, np.int64)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        f, i = floats[: part.size], integers[: part.size]
        # exact: a power of two changes only the exponent, and bounded values stay far below float32's maximum
        np.multiply(part, np.float32(2**FRACTION_BITS), out=f)
        np.rint(f, out=f)
        np.copyto(i, f, casting="unsafe")
        if weight != 1:
            i *= weight
        block = flat_total[start : start + _BLOCK]
        np.add(block, i, out=block)


def _divided(total: IntArray, divisor: float) -> FloatArray:
    """``total / divisor`` as float32, in blocks."""
    out = np.empty(total.shape, np.float32)
    flat_out, flat = out.reshape(-1), total.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        np.divide(flat[part], divisor, out=flat_out[part], casting="unsafe")
    return out


class FixedPointSum:
    """A weighted mean of named tensors in O(model) memory.

    An update may lack tensors (a device without a modality sends no encoder of it): each mean is over the
    updates with the tensor.

    Args:
        shapes: the names that may be added, and their shapes.
        max_abs: bound of absolute values.
    """

    sliced: ClassVar[bool] = False

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], max_abs: float = MAX_ABS) -> None:
        self._shapes = dict(shapes)
        self._totals = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
        self._weights = dict.fromkeys(shapes, 0)
        self._max_abs = float(max_abs)
        self._ignores = False
        self._divisor: float | None = None
        self.max_weight = int(2 ** (HEADROOM_BITS - FRACTION_BITS) / max(self._max_abs, 1.0))
        """Maximum sum of the weights of a tensor."""

    @property
    def weights(self) -> dict[str, int]:
        """The sum of the added weights, by tensor."""
        return dict(self._weights)

    @property
    def size(self) -> int:
        """Values of all tensors."""
        return sum(total.size for total in self._totals.values())

    def add_noise(self, draw: Callable[[int], IntArray], divisor: float) -> None:
        """Add noise to every total, also of tensors that no update has.

        Args:
            draw: gives so many integers, in steps of 2**-24, (N,).
            divisor: of means from then on, instead of the weights.
        """
        for name in sorted(self._totals):
            total = self._totals[name]
            total += draw(total.size).reshape(total.shape)
        self._divisor = divisor

    def add(self, tensors: Mapping[str, FloatArray], weight: int = 1) -> None:
        """Add ``weight`` times each tensor; none if one is refused.

        Raises:
            Refused: an unknown name or wrong shape (WRONG_TENSORS), a non-finite or too large value, or a
                weight below 1 or beyond what the sum can hold (OUT_OF_BOUNDS); the detail names the tensor.
        """
        for name in tensors:
            if name not in self._shapes:
                raise Refused(Reason.WRONG_TENSORS, f"tensor {name!r} is not in the model")
            self._check_weight(name, weight)
        check_tensors(tensors, self._shapes, self._max_abs)
        if self._ignores:
            return
        for name in tensors:
            self._weights[name] += weight
        for names in groups_of(tensors):
            if len(names) == 1:
                _add_scaled(self._totals[names[0]], tensors[names[0]], weight)
                continue
            values_N = joined(tensors, names)
            added_N = np.zeros(values_N.size, np.int64)
            _add_scaled(added_N, values_N, weight)
            start = 0
            for name in names:
                total, end = self._totals[name], start + tensors[name].size
                total += added_N[start:end].reshape(total.shape)
                start = end

    def _check_weight(self, name: str, weight: int) -> None:
        if weight < 1 or self._weights[name] + weight > self.max_weight:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"tensor {name!r}: weight {weight} on top of {self._weights[name]}; weights are at least "
                f"1 and sum to at most {self.max_weight}",
            )

    def merge(self, other: Self) -> None:
        """Add another sum of the same tensors; equals adding all updates to one.

        Raises:
            ValueError: the two differ in names, shapes or bound (a bug).
            Refused: together they would exceed the weight bound.
        """
        mine = {name: total.shape for name, total in self._totals.items()}
        if (
            mine != {name: total.shape for name, total in other._totals.items()}
            or self._max_abs != other._max_abs
        ):
            raise ValueError("only sums over the same tensors and bound can be merged")
        for name, weight in other._weights.items():
            if weight:
                self._check_weight(name, weight)
        for name, total in other._totals.items():
            self._totals[name] += total
            self._weights[name] += other._weights[name]

    def restrict(self, cut: Slice | None) -> None:
        """See :class:`models.partials.FoldPart`: a sum is no part of a slice."""
        self._ignores = cut is not None

    def partial(self) -> Arrays:
        """Weights and sums of all tensors, in the order of their names."""
        if self._ignores:
            return {}
        names = sorted(self._totals)
        flat = [np.zeros(0, np.int64), *(self._totals[name].reshape(-1) for name in names)]
        return {
            "weights": np.array([self._weights[name] for name in names], np.int64),
            "totals": np.concatenate(flat),
        }

    def sums(self) -> Mapping[str, Summed]:
        """Weights by tensor, and the sums."""
        size = sum(total.size for total in self._totals.values())
        return {
            "weights": Summed(len(self._totals), counts=True),
            "totals": Summed(size, step_bits=FRACTION_BITS),
        }

    def absorb(self, partial: Arrays) -> None:
        """Add the result of :meth:`partial` of a sum of the same tensors.

        Raises:
            ValueError: it is of other tensors.
            Refused: together they would exceed the weight bound.
        """
        shapes = {name: self._totals[name].shape for name in sorted(self._totals)}
        other = FixedPointSum({}, self._max_abs)
        ends = np.cumsum([self._totals[name].size for name in shapes])
        totals = np.split(partial["totals"], ends)
        if totals.pop().size or partial["totals"].size != (ends[-1] if len(ends) else 0):
            raise ValueError("the sums are of other tensors")
        for (name, shape), total, weight in zip(
            shapes.items(), totals, partial["weights"].tolist(), strict=True
        ):
            other._totals[name], other._weights[name] = total.reshape(shape), weight
        self.merge(other)

    def mean(self) -> Tensors:
        """The weighted mean of each tensor that was added at least once; with noise, of all."""
        divisors = {name: float(weight) for name, weight in self._weights.items() if weight}
        if self._divisor is not None:
            divisors = dict.fromkeys(self._totals, self._divisor)
        return {
            name: _divided(self._totals[name], divisor * 2**FRACTION_BITS)
            for name, divisor in divisors.items()
        }


class RowSum:
    """The mean of each row of a matrix, over the updates with the row (class prototypes).

    Args:
        rows: K.
        columns: D.
        max_abs: bound of absolute values.
    """

    sliced: ClassVar[bool] = False

    def __init__(self, rows: int, columns: int, max_abs: float = MAX_ABS) -> None:
        self._total_KD = np.zeros((rows, columns), np.int64)
        self.count_K: IntArray = np.zeros(rows, np.int64)
        """Number of updates with the row."""
        self._max_abs = float(max_abs)
        self._ignores = False
        self._max_count = int(2 ** (HEADROOM_BITS - FRACTION_BITS) / max(self._max_abs, 1.0))

    def add(self, name: str, index_R: IntArray, values_RD: FloatArray) -> None:
        """Add rows.

        Args:
            name: the tensor, for errors.
            index_R: the rows, each at most once.
            values_RD: their values.

        Raises:
            Refused: a row is repeated or unknown, the shape is wrong, or a value is not finite or too large.
        """
        rows, columns = self._total_KD.shape
        index_R = np.asarray(index_R, np.int64)
        if len(set(index_R.tolist())) != len(index_R) or any(not 0 <= i < rows for i in index_R.tolist()):
            raise Refused(
                Reason.WRONG_TENSORS,
                f"tensor {name!r}: rows {index_R.tolist()} must be distinct and below {rows}",
            )
        check_tensor(name, values_RD, (len(index_R), columns), self._max_abs)
        if len(index_R) and int(self.count_K[index_R].max()) >= self._max_count:
            raise Refused(
                Reason.OUT_OF_BOUNDS, f"tensor {name!r}: more than {self._max_count} updates in one sum"
            )
        if self._ignores:
            return
        part_RD = np.zeros_like(values_RD, np.int64)
        _add_scaled(part_RD, values_RD, 1)
        self._total_KD[index_R] += part_RD
        self.count_K[index_R] += 1

    def merge(self, other: Self) -> None:
        """Add another sum of the same matrix.

        Raises:
            ValueError: the shapes or bounds differ (a bug).
            Refused: together they would hold too many updates.
        """
        if self._total_KD.shape != other._total_KD.shape or self._max_abs != other._max_abs:
            raise ValueError("only row sums of one shape and bound can be merged")
        if self.count_K.size and int((self.count_K + other.count_K).max()) > self._max_count:
            raise Refused(Reason.OUT_OF_BOUNDS, f"more than {self._max_count} updates in one row sum")
        self._total_KD += other._total_KD
        self.count_K += other.count_K

    def restrict(self, cut: Slice | None) -> None:
        """See :class:`models.partials.FoldPart`: a sum is no part of a slice."""
        self._ignores = cut is not None

    def partial(self) -> Arrays:
        """Sums and counts of all rows."""
        return {} if self._ignores else {"total_KD": self._total_KD, "count_K": self.count_K}

    def sums(self) -> Mapping[str, Summed]:
        """Sums and counts of all rows."""
        return {
            "total_KD": Summed(self._total_KD.size, step_bits=FRACTION_BITS),
            "count_K": Summed(self.count_K.size, counts=True),
        }

    def absorb(self, partial: Arrays) -> None:
        """Add the result of :meth:`partial` of a sum of the same matrix; raises as :meth:`merge`."""
        rows, columns = self._total_KD.shape
        other = RowSum(rows, columns, self._max_abs)
        other._total_KD, other.count_K = partial["total_KD"].reshape(rows, columns), partial["count_K"]
        self.merge(other)

    def mean(self) -> FloatArray:
        """``(K, D)`` float32; zeros for rows without updates (``count_K`` is 0)."""
        divisor_K1 = np.maximum(self.count_K, 1)[:, None] * float(2**FRACTION_BITS)
        return (self._total_KD / divisor_K1).astype(np.float32)
