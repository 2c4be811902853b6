"""The uniform scalar quantizer: equal steps between a group's least and greatest element, as packed codes.

G groups (equal runs of elements in C order) of N elements each. Float64 inside: the range of float32 numbers
can overflow float32, and its subnormals lack precision.
"""

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Reason, Refused

if TYPE_CHECKING:
    # numpy loads its random part on first use: an observing agent saves 3 MB
    from numpy.random import Generator

FloatArray = NDArray[np.float32]

F4: Final = np.dtype("<f4")
_ONE: Final = struct.Struct("<f")
_TOP_8: Final = 255
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


def quantize(rows_GN: FloatArray, bits: int, top: int, rng: "Generator | None") -> tuple[bytes, bytes, bytes]:
    """Write each row with codes 0 to ``top`` between its least and greatest element.

    Args:
        rows_GN: finite, not empty.
        bits: of one code in the packed bytes.
        top: the highest code, from 2 to ``2**bits - 1``.
        rng: rounds stochastically where given, to the nearest code otherwise.

    Returns:
        The packed codes, and low and step of each row as little-endian float32.
    """
    low_G = rows_GN.min(axis=1)
    step_G = _steps(low_G, rows_GN.max(axis=1), top)
    scaled_GN = np.subtract(rows_GN, low_G[:, None], dtype=np.float64)
    scaled_GN /= np.where(step_G > 0, step_G, 1).astype(np.float64)[:, None]
    if rng is None:
        np.rint(scaled_GN, out=scaled_GN)
    else:
        scaled_GN += rng.random(scaled_GN.shape, dtype=np.float32)
        np.floor(scaled_GN, out=scaled_GN)
    np.minimum(scaled_GN, top, out=scaled_GN)
    data = pack(scaled_GN.astype(np.uint8).reshape(-1), bits)
    return data, low_G.astype(F4).tobytes(), step_G.astype(F4).tobytes()


def quantize_each(
    values_N: FloatArray, sizes: Sequence[int], bits: int
) -> tuple[list[bytes], bytes, bytes, FloatArray]:
    """Write several tensors, each with one range, to the nearest code: as :func:`quantize` of each alone.

    Args:
        values_N: the elements of all, finite.
        sizes: elements of each, 1 or more.
        bits: of one code.

    Returns:
        The packed codes of each; low and step of all as little-endian float32; and the decoded elements.
    """
    top, each_G = (1 << bits) - 1, np.array(sizes)
    ends_G = np.cumsum(each_G)
    low_G = np.minimum.reduceat(values_N, ends_G - each_G)
    step_G = _steps(low_G, np.maximum.reduceat(values_N, ends_G - each_G), top)
    low_N = np.repeat(low_G.astype(np.float64), each_G)
    scaled_N = values_N - low_N
    scaled_N /= np.repeat(np.where(step_G > 0, step_G, 1).astype(np.float64), each_G)
    np.rint(scaled_N, out=scaled_N)
    np.minimum(scaled_N, top, out=scaled_N)
    codes_N, ends = scaled_N.astype(np.uint8), ends_G.tolist()
    scaled_N *= np.repeat(step_G.astype(np.float64), each_G)
    scaled_N += low_N
    data = [pack(codes_N[end - size : end], bits) for end, size in zip(ends, sizes, strict=True)]
    return data, low_G.astype(F4).tobytes(), step_G.astype(F4).tobytes(), scaled_N.astype(np.float32)


def _steps(low_G: FloatArray, high_G: FloatArray, top: int) -> FloatArray:
    """(high - low) / top, rounded up to float32 unless the top level would then leave float32's range."""
    low64_G = low_G.astype(np.float64)
    span_G = high_G.astype(np.float64) - low64_G
    step_G: FloatArray = (span_G / top).astype(np.float32)
    short_G = step_G.astype(np.float64) * top < span_G
    with np.errstate(over="ignore"):  # a step of float32's maximum is never short: its next one is not chosen
        step_G = np.where(short_G, np.nextafter(step_G, np.float32(np.inf)), step_G)
    beyond_G = low64_G + step_G.astype(np.float64) * top > _FLOAT32_MAX
    return np.where(beyond_G, np.nextafter(step_G, np.float32(0)), step_G)


def dequantize(data: bytes, low: bytes, step: bytes, size: int, bits: int) -> FloatArray:
    """Read ``size`` elements (a multiple of the number of groups, above 0); the byte lengths were checked.

    Raises:
        Refused: ``NON_FINITE`` for a scale that is not finite, a negative step or a value beyond float32's
            range, ``MALFORMED`` for bits that belong to no element.
    """
    if len(low) == F4.itemsize:
        (least,), (apart,) = _ONE.unpack(low), _ONE.unpack(step)
        if apart >= 0 and abs(least) < math.inf and least + apart * ((1 << bits) - 1) <= _FLOAT32_MAX:
            return _of_one_range(data, least, apart, size, bits)
    with np.errstate(invalid="ignore"):  # a signalling NaN warns already when it is cast
        low_G = np.frombuffer(low, F4).astype(np.float64)
        step_G = np.frombuffer(step, F4).astype(np.float64)
        ends_G = low_G + step_G * ((1 << bits) - 1)
    if not (np.isfinite(ends_G).all() and (step_G >= 0).all()):
        raise Refused(Reason.NON_FINITE, "low or step is not a finite number, or step is negative")
    codes_GN = unpack(data, size, bits).reshape(len(low_G), -1)
    values_GN = codes_GN * step_G[:, None]
    values_GN += low_G[:, None]
    if (ends_G > _FLOAT32_MAX).any() and (values_GN > _FLOAT32_MAX).any():
        raise Refused(Reason.NON_FINITE, "a value is beyond float32's range")
    decoded: FloatArray = values_GN.astype(np.float32)
    return decoded


def dequantize_each(data: bytes, low: bytes, step: bytes, sizes: Sequence[int]) -> FloatArray | None:
    """The elements of several tensors with 8-bit codes and one range each: as :func:`dequantize` of each.

    Args:
        data: the codes of all.
        low: of each.
        step: of each.
        sizes: elements of each; their sum is the length of ``data``.

    Returns:
        Elements of all; None if a range is wrong or nearly leaves float32's.
    """
    with np.errstate(invalid="ignore"):  # as above
        low_G = np.frombuffer(low, F4).astype(np.float64)
        step_G = np.frombuffer(step, F4).astype(np.float64)
        ends_G = low_G + step_G * _TOP_8
    if not ((step_G >= 0) & (np.abs(low_G) < np.inf) & (ends_G <= _FLOAT32_MAX)).all():
        return None
    values_N = np.frombuffer(data, np.uint8) * np.repeat(step_G, sizes)
    values_N += np.repeat(low_G, sizes)
    decoded: FloatArray = values_N.astype(np.float32)
    return decoded


def _of_one_range(data: bytes, low: float, step: float, size: int, bits: int) -> FloatArray:
    """Elements with one range: each byte stands for the same values everywhere, so they are looked up.

    One pass over the elements instead of nine: each would let another thread run, which costs more than the
    work on a small tensor.

    Raises:
        Refused: ``MALFORMED``, as :func:`dequantize`.
    """
    values_BC = (_CODES_BC[bits] * step + low).astype(np.float32)
    packed = np.frombuffer(data, np.uint8)
    _check_unused(_CODES_BC[bits][packed[-1]], size)
    values: FloatArray = np.take(values_BC, packed, axis=0).reshape(-1)
    return values[:size]


def pack(codes: NDArray[np.uint8], bits: int) -> bytes:
    """Codes below ``2**bits`` to bytes, little end first; unused bits of the last byte are zero."""
    per_byte = 8 // bits
    if per_byte == 1:
        return codes.tobytes()
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes
    lanes = padded.reshape(-1, per_byte)
    packed = lanes[:, 0].copy()
    for lane in range(1, per_byte):
        packed |= lanes[:, lane] << (bits * lane)
    return packed.tobytes()


def unpack(data: bytes, size: int, bits: int) -> NDArray[np.uint8]:
    """The inverse of :func:`pack`; the length was checked before.

    Raises:
        Refused: bits after the last code are set.
    """
    packed = np.frombuffer(data, np.uint8)
    per_byte = 8 // bits
    if per_byte == 1:
        return packed
    lanes = np.empty((packed.size, per_byte), np.uint8)
    for lane in range(per_byte):
        np.bitwise_and(packed >> (bits * lane), (1 << bits) - 1, out=lanes[:, lane])
    _check_unused(lanes[-1], size)
    return lanes.reshape(-1)[:size]


def _check_unused(codes: NDArray[np.uint8], size: int) -> None:
    """Check the codes of the last byte of so many elements."""
    if codes[(size - 1) % len(codes) + 1 :].any():
        raise Refused(Reason.MALFORMED, "unused bits of the last byte are not zero")


_CODES_BC: Final = {
    bits: unpack(bytes(range(256)), 2048 // bits, bits).reshape(256, -1) for bits in (8, 4, 2)
}
"""By bits, the C codes in each byte."""
