"""The format of the scans in an IIO buffer, and how to convert their bytes to numbers. Pure.

A scan holds the enabled channels in the order of their index, each aligned to its own size, then the
timestamp; the whole is aligned to the largest element. A type reads ``le:s12/16X3>>4``: little endian,
signed, 12 valid bits in 16 stored bits, 3 of them, shifted by 4.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

_TYPE: Final = re.compile(r"(le|be):([suf])(\d{1,3})/(\d{1,3})(?:X(\d{1,3}))?>>(\d{1,3})")
_STORAGE: Final = (8, 16, 32, 64)
_FLOATS: Final = (16, 32, 64)


@dataclass(frozen=True)
class ScanType:
    """``bits`` valid bits in ``storage_bits``, ``repeat`` times; ``kind``: s(igned), u(nsigned), f(loat)."""

    big: bool
    kind: str
    bits: int
    storage_bits: int
    repeat: int = 1
    shift: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the kernel's description of an element.

        Raises:
            ValueError: it is unknown or inconsistent.
        """
        match = _TYPE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a type of a scan element such as le:s16/16>>0")
        bits, storage, repeat, shift = int(match[3]), int(match[4]), int(match[5] or 1), int(match[6])
        if storage not in _STORAGE or not 1 <= bits <= storage - shift or repeat < 1:
            raise ValueError(f"{text!r}: {bits} bits shifted by {shift} in {storage}, {repeat} times")
        if match[2] == "f" and (bits not in _FLOATS or bits != storage or shift):
            raise ValueError(f"{text!r}: no floating point number of IEEE 754")
        return cls(match[1] == "be", match[2], bits, storage, repeat, shift)

    @property
    def bytes(self) -> int:
        """Size of the element in a scan."""
        return self.storage_bits // 8 * self.repeat

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one stored number."""
        kind = "f" if self.kind == "f" else "u"
        return np.dtype(f"{'>' if self.big else '<'}{kind}{self.storage_bits // 8}")

    def numbers(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Values of the stored numbers as int64, uint64 or float64: shifted, masked, with their sign."""
        if self.kind == "f":
            return stored.astype(np.float64)
        wide = stored.astype(np.uint64) >> np.uint64(self.shift)
        mask = np.uint64((1 << self.bits) - 1)
        wide &= mask
        if self.kind == "u":
            return wide
        sign = np.uint64(1 << (self.bits - 1))
        wide |= np.where(wide & sign, ~mask, np.uint64(0))
        return wide.view(np.int64)


@dataclass(frozen=True)
class Element:
    """One channel in the scan."""

    name: str
    index: int
    type: ScanType


class ScanLayout:
    """The position of each enabled element in a scan."""

    def __init__(self, elements: Iterable[Element]) -> None:
        self.elements = tuple(sorted(elements, key=lambda element: element.index))
        offsets, at, largest = [], 0, 1
        for element in self.elements:
            size = element.type.bytes
            at = _aligned(at, size)
            offsets.append(at)
            at, largest = at + size, max(largest, size)
        self.size = _aligned(at, largest)
        """Bytes of one scan."""
        self._dtype = np.dtype(
            {
                "names": [element.name for element in self.elements],
                "formats": [(element.type.dtype, (element.type.repeat,)) for element in self.elements],
                "offsets": offsets,
                "itemsize": self.size,
            }
        )
        self.offsets = dict(zip(self._dtype.names or (), offsets, strict=True))

    def read(self, block: bytes) -> dict[str, NDArray[Any]]:
        """The numbers (n, repeat) of each element in the n whole scans of ``block``."""
        whole = len(block) // self.size * self.size
        scans = np.frombuffer(block[:whole], self._dtype)
        return {element.name: element.type.numbers(scans[element.name]) for element in self.elements}


def _aligned(at: int, size: int) -> int:
    return -(-at // size) * size
