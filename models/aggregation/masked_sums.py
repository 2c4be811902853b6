"""A fold's partial result as one vector of a ring, and back: what secure aggregation masks and adds.

NumPy only. Partial results of sums add up to the bit (:mod:`models.partials`), and so do their elements
modulo a power of two that the sum does not reach. So a round that adds masked vectors gives the same
version as one that folds the updates (docs/adr/0055-secure-aggregation.md).

Shapes: N elements of a vector.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Fold
from models.partials import Arrays, Summed
from protocol.errors import Misconfigured, Reason, Refused
from protocol.secure_aggregation.ring import Words, to_numbers, to_words
from protocol.tasks.folding import SecureAggregation

NO_SUM: Final = "its fold is not a sum of whole numbers of one shape"


@dataclass(frozen=True, slots=True)
class SumEntry:
    """One array of a partial result within the vector.

    Attributes:
        part: of the fold.
        key: of the part's partial result.
        start: of its elements in the vector.
        array: what it is.
    """

    part: str
    key: str
    start: int
    array: Summed

    @property
    def span(self) -> slice:
        """Its elements."""
        return slice(self.start, self.start + self.array.size)

    @property
    def where(self) -> str:
        """For errors."""
        return f"{self.part}|{self.key}"


@dataclass(frozen=True, slots=True)
class SumLayout:
    """The order of all arrays of a fold's partial result; it follows from task and model alone.

    Attributes:
        entries: in the order of parts and keys.
        size: N.
        counted: arrays that are not in the vector: of each, every device counts once, whatever it has.
    """

    entries: tuple[SumEntry, ...]
    size: int
    counted: tuple[SumEntry, ...] = ()


def unsummed_part(fold: Fold) -> str:
    """The first part of a fold whose partial results do not add up, by name; empty: all do."""
    return next((name for name, part in sorted(fold.parts().items()) if not part.sums()), "")


def layout_of(fold: Fold, *, noisy: bool = False) -> SumLayout:
    """The layout of a fold's vector.

    Args:
        fold: of the round, empty or not.
        noisy: devices add noise, of which counts would have none: they are left out, and would tell which
            sensors a device has.

    Raises:
        Misconfigured: a part of it is no sum.
    """
    if part := unsummed_part(fold):
        raise Misconfigured(f"secure aggregation: part {part!r} of the fold: {NO_SUM}")
    entries, counted, start = [], [], 0
    for name, part_of_fold in sorted(fold.parts().items()):
        for key, array in sorted(part_of_fold.sums().items()):
            if noisy and array.counts:
                counted.append(SumEntry(name, key, 0, array))
                continue
            entries.append(SumEntry(name, key, start, array))
            start += array.size
    return SumLayout(tuple(entries), start, tuple(counted))


def vector_of(fold: Fold, layout: SumLayout, options: SecureAggregation) -> Words:
    """The vector of a fold of one device's update.

    Args:
        fold: with the update alone, whose values are multiples of the task's step within its bound.
        layout: of the fold.
        options: of the task.

    Raises:
        Refused: a value is beyond the bound, between two steps, or the weight is too large.
    """
    found: Arrays = {}
    for name, part in fold.parts().items():
        found |= {f"{name}|{key}": array for key, array in part.partial().items()}
    values_N = np.empty(layout.size, np.int64)
    for entry in layout.entries:
        array_N = np.asarray(found[entry.where]).reshape(-1).astype(np.int64)
        values_N[entry.span] = _in_steps(entry, array_N, options)
    _check(layout, values_N, options, 1)
    return to_words(values_N, options.ring_bits)


def absorb_vector(
    fold: Fold,
    layout: SumLayout,
    options: SecureAggregation,
    total_N: Words,
    devices: int,
    *,
    largest: int | None = None,
) -> None:
    """Add the sum of so many devices' vectors, without masks, to a fold.

    Args:
        fold: of the round.
        layout: of its vector.
        options: of the task.
        total_N: the sum.
        devices: whose vectors are in it.
        largest: magnitude that an element may have, with the noise of devices; None: they add none.

    Raises:
        Refused: the sum is none of vectors within the task's bounds: a device lied, or a mask is left.
    """
    values_N = to_numbers(total_N, options.ring_bits)
    _check(layout, values_N, options, devices, largest)
    partials: dict[str, Arrays] = {}
    for entry in layout.counted:
        partials.setdefault(entry.part, {})[entry.key] = np.full(entry.array.size, devices, np.int64)
    for entry in layout.entries:
        array_N = values_N[entry.span].copy()
        if not entry.array.counts:
            array_N <<= entry.array.step_bits - options.fraction_bits
        partials.setdefault(entry.part, {})[entry.key] = array_N
    parts = fold.parts()
    for name, partial in partials.items():
        parts[name].absorb(partial)


def _in_steps(entry: SumEntry, array_N: NDArray[np.int64], options: SecureAggregation) -> NDArray[np.int64]:
    """Sums in the task's steps; counts as they are."""
    if entry.array.counts:
        return array_N
    shift = entry.array.step_bits - options.fraction_bits
    steps_N = array_N >> shift
    if ((steps_N << shift) != array_N).any():
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"{entry.where}: a value is no multiple of 2**-{options.fraction_bits}; it was not rounded",
        )
    return steps_N


def _check(
    layout: SumLayout,
    values_N: NDArray[np.int64],
    options: SecureAggregation,
    devices: int,
    largest: int | None = None,
) -> None:
    """No element is beyond what so many devices can give."""
    heaviest = devices * options.heaviest
    largest = heaviest * options.level if largest is None else largest
    for entry in layout.entries:
        part_N = values_N[entry.span]
        most = heaviest if entry.array.counts else largest
        least = 0 if entry.array.counts else -most
        if part_N.size and (int(part_N.max()) > most or int(part_N.min()) < least):
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"{entry.where}: an element is beyond what {devices} devices can give (at most {most}): "
                f"bound = {options.bound:g}, weights up to {options.heaviest}",
            )
