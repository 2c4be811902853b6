"""Partial results of a fold, as bytes: any partition of a round over processes gives the same version.

NumPy only. A process opens the round's fold, restricts it (:func:`restrict`), folds its updates and returns
:func:`partial_bytes`. The process that closes the round opens another and absorbs them all, in any order.
"""

import io
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from models.contract import Fold
from models.partials import Arrays, FoldPart, FoldParts, Slice, Summed
from models.tensors import npz_bytes
from protocol.errors import Transient


class PartwiseFold(ABC):
    """A fold that consists of parts, and so merges part by part; see :class:`models.contract.Fold`."""

    @abstractmethod
    def parts(self) -> FoldParts:
        """All that updates change, by a name within the fold."""

    def merge(self, other: Self) -> None:
        """Merge another fold of the same round."""
        theirs = other.parts()
        for name, part in self.parts().items():
            part.merge(cast("Any", theirs[name]))


class Flags:
    """Marks that any update can set, for example of the classes that were trained."""

    sliced: ClassVar[bool] = False

    def __init__(self, count: int) -> None:
        self.flags_K: NDArray[np.bool_] = np.zeros(count, np.bool_)

    def mark(self, flags_K: NDArray[np.bool_]) -> None:
        """Set the marks that are true."""
        self.flags_K |= flags_K

    def restrict(self, cut: Slice | None) -> None:
        """Nothing: a mark that is set twice is the same mark."""

    def merge(self, other: Self) -> None:
        """Set the other's marks."""
        self.mark(other.flags_K)

    def partial(self) -> Arrays:
        """The marks."""
        return {"flags_K": self.flags_K}

    def sums(self) -> Mapping[str, Summed]:
        """How many updates have set each mark."""
        return {"flags_K": Summed(self.flags_K.size, counts=True)}

    def absorb(self, partial: Arrays) -> None:
        """Set another's marks, or those that several updates have set so many times."""
        self.mark(partial["flags_K"] != 0)


def restrict(fold: Fold, cut: Slice | None) -> None:
    """Let a fold compute only one slice, or, with None, only what is cut by update."""
    for part in fold.parts().values():
        part.restrict(cut)


def partial_bytes(fold: Fold) -> bytes:
    """The partial result of a fold; equal updates and cuts give equal bytes."""
    found = {
        f"{name}|{key}": array for name, part in fold.parts().items() for key, array in part.partial().items()
    }
    return npz_bytes(found)


def absorb(fold: Fold, data: bytes) -> None:
    """Add the result of :func:`partial_bytes` to a fold of the same round.

    Raises:
        Transient: the bytes are not readable, or of another fold.
        Refused: together, the sums would exceed their bounds.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            by_part: dict[str, Arrays] = {}
            for name in arrays.files:
                part, key = name.split("|", 1)
                by_part.setdefault(part, {})[key] = arrays[name]
        parts: dict[str, FoldPart] = {name: fold.parts()[name] for name in by_part}
        for name, found in by_part.items():
            parts[name].absorb(found)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        words = f"a partial result of the fold is not readable: {type(error).__name__}: {error}"
        raise Transient(words) from error
