"""Reads packed data sets, and compares their arrays with the form that docs/data.md describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import locations
from models.tensors import read_arrays
from protocol.errors import Misconfigured

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ArrayForm:
    """The form of one array.

    Attributes:
        shape: length of each axis; a letter stands for a length that arrays share.
        kind: of its numbers: a type, or ``integers`` or ``numbers`` of any type, which must be finite.
        low: least value.
        high: largest value.
    """

    shape: tuple[int | str, ...]
    kind: str = "integers"
    low: float = -np.inf
    high: float = np.inf

    def fits(self, array: NDArray[Any], lengths: dict[str, int]) -> bool:
        """Whether an array has the form; takes lengths that are not known yet from it."""
        if array.ndim != len(self.shape):
            return False
        for wanted, length in zip(self.shape, array.shape, strict=True):
            if (lengths.setdefault(wanted, length) if isinstance(wanted, str) else wanted) != length:
                return False
        if array.dtype.kind not in _KINDS.get(self.kind, "f") or self.kind not in {*_KINDS, array.dtype.name}:
            return False
        return bool(np.isfinite(array).all() and (array >= self.low).all() and (array <= self.high).all())

    def __str__(self) -> str:
        within = "" if np.isinf([self.low, self.high]).any() else f" from {self.low:g} to {self.high:g}"
        return f"finite {self.kind} of shape ({', '.join(map(str, self.shape))}){within}"


_KINDS: Final = {"integers": "iu", "int16": "i", "numbers": "f"}


def read_packed(folder: str, file: str, title: str, forms: Mapping[str, ArrayForm]) -> Arrays:
    """The arrays of a packed data set.

    Raises:
        Misconfigured: it is not here, or not in the packed form; names the file and the key.
    """
    path = locations.file(folder, file)
    arrays = read_arrays(path, title)
    check_form(arrays, str(path), forms)
    return arrays


def check_form(arrays: Arrays, where: str, forms: Mapping[str, ArrayForm]) -> None:
    """Compare arrays with their forms.

    Raises:
        Misconfigured: a key is missing, or its array has another form; names ``where`` and the key.
    """
    lengths: dict[str, int] = {}
    for key, form in forms.items():
        if key not in arrays:
            raise Misconfigured(f"{where}: key {key!r} is not in it; docs/data.md has the layout")
        if not form.fits(arrays[key], lengths):
            known = f"; {', '.join(f'{name} is {n}' for name, n in lengths.items())}" if lengths else ""
            raise Misconfigured(f"{where}: key {key!r} must be {form}, it is {_form_of(arrays[key])}{known}")


def _form_of(array: NDArray[Any]) -> str:
    """Type, shape, and the least and largest value if there are any."""
    within = f", from {array.min():g} to {array.max():g}" if array.size and array.dtype.kind in "iuf" else ""
    return f"{array.dtype} of shape ({', '.join(map(str, array.shape))}){within}"


def check_spans(arrays: Arrays, where: str, start: str, length: str, samples: int) -> None:
    """Require that all recordings lie within the samples.

    Raises:
        Misconfigured: one does not.
    """
    first, count = (arrays[key].astype(np.int64) for key in (start, length))
    if (first < 0).any() or (count < 1).any() or (first + count > samples).any():
        raise Misconfigured(f"{where}: keys {start!r} and {length!r} point outside the {samples} samples")
