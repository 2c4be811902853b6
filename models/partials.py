"""What folds exchange between processes: partial results, and which part of a fold a process computes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Slice:
    """One of ``of`` parts of the model's values, in a fixed order; ``index`` counts from 0."""

    index: int
    of: int

    def bounds(self, size: int) -> tuple[int, int]:
        """Start and stop of this slice of ``size`` values."""
        return size * self.index // self.of, size * (self.index + 1) // self.of

    def has(self, key: int) -> bool:
        """Whether something that cannot be cut, the ``key``-th of its kind, belongs to this slice."""
        return key % self.of == self.index


@dataclass(frozen=True, slots=True)
class Summed:
    """An array of a partial result that adds up over updates: its shape follows from the model alone.

    Attributes:
        size: number of elements.
        step_bits: an element counts steps of ``2 ** -step_bits``.
        counts: elements count updates or their weights, and are never negative; else they are sums of values.
    """

    size: int
    step_bits: int = 0
    counts: bool = False


class FoldPart(Protocol):
    """A running aggregate within a fold: an exact sum, or a robust fold of some tensors.

    Sums are cut by update: partial results over disjoint updates add up. Robust folds compare all updates:
    they are cut by slice, and each slice needs every update.

    Attributes:
        sliced: cut by slice; otherwise by update.
    """

    sliced: ClassVar[bool]

    def restrict(self, cut: Slice | None) -> None:
        """Before the first update: compute only this slice, or, with None, only what is cut by update.

        A part that the cut does not concern ignores updates from now on.
        """

    def merge(self, other: Self) -> None:
        """Add another part of the same kind and cut, over other updates."""

    def partial(self) -> Arrays:
        """The partial result; empty if the cut does not concern this part."""

    def absorb(self, partial: Arrays) -> None:
        """Add a partial result: over other updates, or of another slice over all updates."""

    def sums(self) -> Mapping[str, Summed]:
        """The arrays of :meth:`partial`, if all of them add up by element over updates; else empty.

        Secure aggregation adds masked partial results, and absorbs the sum (ADR 55).
        """


FoldParts = Mapping[str, FoldPart]
"""The parts of a fold, by a name within it."""
