"""The codec ``steps``: whole numbers times one power of two; most of a small change is zero.

``step`` is a power of two, so a value is exact in float32, and a sum of such values, too, while it has at
most 24 bits: every machine with IEEE 754 arithmetic reads the same bits, and sums them to the same bits.

Layout of ``data`` for N numbers q in C order:

- ceil(N / 5) bytes: the signs plus one (0, 1 or 2), five in a byte, the first in the lowest place of base 3;
  unused places hold 1.
- For each q that is not zero ``|q| - 1`` in w bytes, by planes: all lowest bytes, then the next ones. w is 0
  if all are zero, and at most 3.

An entropy coder (:mod:`protocol.frames.compression`) finds equal bytes in it that it would not find in packed
codes: five signs are one symbol, so a sign costs far less than a bit.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Reason, Refused

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]

MAX_LEVEL: Final = (1 << 23) - 1
"""Largest magnitude of a number: its product with a power of two is exact in float32."""
_PLACES: Final = np.array([1, 3, 9, 27, 81], np.uint8)
_SIGNS: Final = len(_PLACES)
_MOST: Final = 3**_SIGNS
_WIDEST: Final = 3
_LOWEST_EXPONENT: Final = -100
"""No sum of values on such a grid is subnormal; some processors replace those by zero."""
_HIGHEST_EXPONENT: Final = 105
_MANTISSA_BITS: Final = 24


def step_for(values: FloatArray, coarseness: float) -> float:
    """The power of two nearest to ``coarseness`` times the root mean square; 1 for zeros alone.

    Args:
        values: any shape, finite.
        coarseness: above 0. Of values below half a step nothing is sent.
    """
    wide = values.astype(np.float64).reshape(-1)
    power = float(np.dot(wide, wide)) / max(1, wide.size)
    if power == 0:
        return 1.0
    exponent = round(math.log2(coarseness) + 0.5 * math.log2(power))
    top = math.frexp(float(np.abs(wide).max()))[1] - _MANTISSA_BITS + 1  # all numbers stay below MAX_LEVEL
    return math.ldexp(1.0, min(_HIGHEST_EXPONENT, max(_LOWEST_EXPONENT, exponent, top)))


def levels_of(values: FloatArray, step: float) -> IntArray:
    """The nearest whole numbers of steps, flat; within :data:`MAX_LEVEL`."""
    scaled = np.rint(values.astype(np.float64).reshape(-1) / step)
    return np.clip(scaled, -MAX_LEVEL, MAX_LEVEL).astype(np.int64)


def exact_step(values: FloatArray) -> float | None:
    """The largest power of two within the bounds of this codec of which all values are whole multiples.

    Args:
        values: any shape, finite.

    Returns:
        None: this codec cannot hold them exactly.
    """
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    if (bits == np.uint32(1 << 31)).any():
        return None  # a negative zero
    nonzero = bits[bits != 0]
    if not nonzero.size:
        return 1.0
    raised = (nonzero >> 23) & 0xFF
    if not raised.all():
        return None  # a subnormal number
    mantissa = (nonzero & 0x7FFFFF) | 0x800000
    lowest_bit = mantissa & (~mantissa + np.uint32(1))
    zeros = np.log2(lowest_bit.astype(np.float64)).astype(np.int64)  # exact: powers of two below 2**24
    exponent = min(int((raised.astype(np.int64) - 150 + zeros).min()), _HIGHEST_EXPONENT)
    top = int(raised.max()) - 126
    if exponent < _LOWEST_EXPONENT or top - exponent >= _MANTISSA_BITS:
        return None
    return math.ldexp(1.0, exponent)


def pack(levels: IntArray) -> bytes:
    """Write numbers within :data:`MAX_LEVEL`; the layout is the module's."""
    signs = np.ones(-(-levels.size // _SIGNS) * _SIGNS, np.uint8)
    signs[: levels.size] = np.sign(levels) + 1
    packed: bytes = (signs.reshape(-1, _SIGNS) * _PLACES).sum(axis=1, dtype=np.uint8).tobytes()
    rest = np.abs(levels[levels != 0]) - 1
    width = (int(rest.max(initial=0)).bit_length() + 7) // 8
    planes = (((rest >> (8 * plane)) & 0xFF).astype(np.uint8) for plane in range(width))
    return b"".join((packed, *(plane.tobytes() for plane in planes)))


def unpack(data: bytes, size: int) -> IntArray:
    """Read ``size`` numbers; memory is bounded by ``size``, which the caller has bounded.

    Raises:
        Refused: ``MALFORMED``: the length does not fit, or a byte stands for no five signs.
    """
    head = -(-size // _SIGNS)
    packed = np.frombuffer(data, np.uint8)
    if packed.size < head:
        raise Refused(
            Reason.MALFORMED, f"steps of {size} elements take {head} bytes of signs, got {packed.size}"
        )
    if head and int(packed[:head].max()) >= _MOST:
        raise Refused(Reason.MALFORMED, f"a byte of five signs is below {_MOST}")
    signs = (packed[:head, None] // _PLACES % 3).reshape(-1).astype(np.int64) - 1
    if signs[size:].any():
        raise Refused(Reason.MALFORMED, "unused signs of the last byte are not zero")
    levels = signs[:size].copy()
    places = np.flatnonzero(levels)
    width, extra = divmod(packed.size - head, places.size) if places.size else (0, packed.size - head)
    if extra or width > _WIDEST:
        raise Refused(
            Reason.MALFORMED, f"{packed.size - head} bytes of magnitudes do not fit {places.size} elements"
        )
    if width:
        planes = packed[head:].reshape(width, places.size).astype(np.int64)
        magnitudes = 1 + sum(planes[plane] << (8 * plane) for plane in range(width))
        if not planes[-1].any() or int(magnitudes.max()) > MAX_LEVEL:
            raise Refused(Reason.MALFORMED, "magnitudes are beyond the bound, or have an empty plane")
        levels[places] *= magnitudes
    return levels


def values_of(levels: IntArray, step: float) -> FloatArray:
    """The values: exact in float32 for a step of :func:`read_step`."""
    return (levels.astype(np.float64) * step).astype(np.float32)


def read_step(data: bytes) -> float:
    """The step of a tensor from its 4 bytes.

    Raises:
        Refused: no power of two within the codec's range.
    """
    if len(data) != 4:  # noqa: PLR2004 - a float32
        raise Refused(Reason.MALFORMED, f"steps need one step value of 4 bytes, got {len(data)} bytes")
    step = float(np.frombuffer(data, "<f4")[0])
    if not math.isfinite(step):
        raise Refused(Reason.NON_FINITE, "the step is NaN or infinite")
    mantissa, exponent = math.frexp(step)
    if mantissa != 0.5 or not _LOWEST_EXPONENT <= exponent - 1 <= _HIGHEST_EXPONENT:  # noqa: PLR2004 - frexp's
        raise Refused(Reason.MALFORMED, f"step {step:g} is no power of two from 2**-100 to 2**105")
    return step
