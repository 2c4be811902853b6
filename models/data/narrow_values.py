"""Values as bytes in the narrowest type that gives back the same float32 values, bit for bit. Pure.

A byte names the type, the values follow (little-endian): pixels and counts take one byte a value, sound of 16
bits two, all else four.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
_SHOWN: Final = 64
"""Most values that do not fit a type are found among so many."""


@dataclass(frozen=True)
class _Narrow:
    """A type: its form on disk, and the factor of its whole numbers."""

    form: str
    scale: float = 1.0

    def pack(self, x: Values) -> bytes | None:
        """The values in this type; None if some are not the same after :meth:`unpack`."""
        with np.errstate(invalid="ignore", over="ignore"):
            packed = (x / np.float32(self.scale)).astype(self.form)
        # bits, not values: -0.0 equals 0.0
        return packed.tobytes() if np.array_equal(_bits(self.unpack(packed)), _bits(x)) else None

    def unpack(self, packed: NDArray[np.generic]) -> Values:
        """The values as float32."""
        return packed.astype(np.float32) * np.float32(self.scale)


_FLOAT32: Final = 0
_NARROW: Final = {1: _Narrow("u1"), 2: _Narrow("<i2"), 3: _Narrow("<i2", 1 / 32768)}
_WIDTHS: Final = {_FLOAT32: "<f4"} | {code: kind.form for code, kind in _NARROW.items()}


def _bits(x: Values) -> NDArray[np.uint32]:
    return x.view(np.uint32)


def encode(x: Values) -> bytes:
    """The code of a type, and the values in it; in C order."""
    flat = np.ascontiguousarray(x, np.float32).ravel()
    for code, kind in _NARROW.items():
        if kind.pack(flat[:_SHOWN]) is not None and (packed := kind.pack(flat)) is not None:
            return bytes([code]) + packed
    return bytes([_FLOAT32]) + flat.astype("<f4").tobytes()


def decode(data: bytes, offset: int, count: int) -> tuple[Values, int]:
    """``count`` values that begin at ``offset`` with their code; and the offset behind them.

    Raises:
        ValueError: they are damaged.
        IndexError: nothing is there.
    """
    code = data[offset]
    if code not in _WIDTHS:
        raise ValueError(f"values of type {code}, which this release does not know")
    packed = np.frombuffer(data, _WIDTHS[code], count, offset + 1)
    values = packed.astype(np.float32) if code == _FLOAT32 else _NARROW[code].unpack(packed)
    return values, offset + 1 + packed.nbytes
