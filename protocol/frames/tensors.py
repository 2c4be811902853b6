"""Tensor codecs: raw, half precision, uniform quantization to 8, 4 or 2 bits, or the largest values.

Byte layouts (all little-endian; elements in C order):

- ``float32``: 4 bytes an element.
- ``float16``: 2 bytes an element, times one power of two (``step``) that puts the largest magnitude just
  below 2**15. So tiny deltas do not vanish in half precision's subnormals, and huge ones do not
  overflow.
- ``int8``, ``int4``, ``int2``: codes, packed little end first (element 0 in the lowest bits of byte 0);
  unused bits of the last byte are zero. A code q of group g stands for ``low[g] + q * step[g]``. Groups are
  equal runs of elements: the whole tensor, or one index of axis 0 each ("per channel").
- ``uint8``: 1 byte an element, the whole numbers 0 to 255 as they are (entity keys, bitmaps).
- ``steps``: whole numbers times ``step``, a power of two (:mod:`protocol.frames.steps`); for small changes,
  of which most are zero.
- ``topk``: k uint32 positions, strictly increasing, then k float32 values; all other elements are zero.

``low`` and ``step`` are float32: a delta's step is often below float16's smallest number. ``low`` is the
group's minimum, exactly. ``step`` is rounded upwards, so that the levels always reach the maximum.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike

from protocol.errors import Reason, Refused
from protocol.frames import steps, uniform_quantizer
from protocol.frames.uniform_quantizer import F4, FloatArray

if TYPE_CHECKING:
    # numpy loads its random part on first use: an observing agent saves 3 MB
    from numpy.random import Generator

_F2: Final = np.dtype("<f2")
_U4: Final = np.dtype("<u4")
_TINY: Final = np.float32(1.401298464324817e-45)  # the smallest float32 above zero
_HALF_EXPONENT: Final = 15
_HALF_TOP: Final = 32752.0  # the largest float16 below 2**15: the product with the scale stays finite


class Codec(StrEnum):
    """Encoding of a tensor's elements; the value is the word on the wire."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"
    UINT8 = "uint8"
    STEPS = "steps"
    TOPK = "topk"


BITS: Final = {Codec.INT8: 8, Codec.INT4: 4, Codec.INT2: 2}
"""Bits per element of the uniform quantizers."""
CHANNEL_ELEMENTS: Final = {Codec.INT8: 128, Codec.INT4: 64, Codec.INT2: 128}
"""Smaller channels share one range: their ``low`` and ``step`` (8 bytes) would cost more than 1/16 of int8's
codes, or 1/4 of int4's and int2's."""
_ELEMENT_BITS: Final = {Codec.FLOAT32: 32, Codec.FLOAT16: 16, Codec.UINT8: 8, **BITS}


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded tensor.

    Attributes:
        codec: the encoding of ``data``.
        shape: the tensor's shape; () is a scalar.
        data: the elements, in the layout of the module's docstring.
        low: float32 per group, the value of code 0; empty for codecs without codes.
        step: float32 per group, the distance of neighbouring codes; for float16 the one scale.
        groups: number of runs with their own ``low`` and ``step``; 0 for codecs without codes.
    """

    codec: Codec
    shape: tuple[int, ...]
    data: bytes
    low: bytes = b""
    step: bytes = b""
    groups: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Payload bytes, without name and shape."""
        return len(self.data) + len(self.low) + len(self.step)


def encode(
    x: ArrayLike,
    codec: Codec,
    *,
    per_channel: bool = False,
    rng: "Generator | None" = None,
    keep: float = 0.01,
    levels: int | None = None,
    coarseness: float = 1.0,
) -> Encoded:
    """Write a tensor.

    With the uniform quantizers, ``|x - decode(encode(x))|`` is at most step / 2 plus half a unit in the last
    place of float32, and never above step; with ``rng`` (stochastic rounding) it is at most step plus that
    half unit, and its mean is zero.

    Args:
        x: any shape, finite; taken as float32.
        codec: the encoding.
        per_channel: quantize every index of axis 0 on its own range, where a channel has at least
            ``CHANNEL_ELEMENTS``; else the whole tensor has one range.
        rng: rounds stochastically when given (unbiased), to the nearest level otherwise.
        keep: share of elements that ``topk`` keeps (at least one element).
        levels: use so many levels instead of all of the codec's (3 or more; a 3-bit quantizer has 8
            levels of int4).
        coarseness: of ``steps``: the step relative to the values' root mean square.

    Raises:
        ValueError: an element is not finite, ``keep`` or ``levels`` is out of range, or an element of
            ``uint8`` is no whole number from 0 to 255.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(x, dtype=np.float32)
    shape = np.shape(x)
    if not np.isfinite(values).all():
        raise ValueError(f"a tensor of shape {shape} has a NaN or an infinity: it cannot be encoded")
    match codec:
        case Codec.FLOAT32:
            return Encoded(codec, shape, values.astype(F4, copy=False).tobytes())
        case Codec.FLOAT16:
            return _encode_half(values, shape)
        case Codec.TOPK:
            return _encode_topk(values, shape, keep)
        case Codec.UINT8:
            return _encode_bytes(values, shape)
        case Codec.STEPS:
            return encode_steps(values.reshape(shape), steps.step_for(values, coarseness))
        case _:
            return _encode_uniform(values, shape, codec, per_channel=per_channel, rng=rng, levels=levels)


def _encode_uniform(
    values: FloatArray,
    shape: tuple[int, ...],
    codec: Codec,
    *,
    per_channel: bool,
    rng: "Generator | None",
    levels: int | None,
) -> Encoded:
    top = (levels or 1 << BITS[codec]) - 1
    if not 2 <= top < 1 << BITS[codec]:  # noqa: PLR2004 - half of float32's span is a float32, the whole is not
        raise ValueError(f"levels must be 3 to {1 << BITS[codec]} for {codec.value}, got {levels}")
    groups = _group_count(shape, codec, per_channel=per_channel)
    if groups == 0:
        return Encoded(codec, shape, b"")
    return Encoded(
        codec, shape, *uniform_quantizer.quantize(values.reshape(groups, -1), BITS[codec], top, rng), groups
    )


def encode_steps(values: FloatArray, step: float) -> Encoded:
    """Write a tensor as whole numbers of a step, a power of two; finite values are rounded to the nearest."""
    data = steps.pack(steps.levels_of(values, step))
    return Encoded(Codec.STEPS, np.shape(values), data, step=np.float32(step).astype(F4).tobytes())


def decode(encoded: Encoded) -> FloatArray:
    """Read a tensor; the array is a writable copy of its own.

    Raises:
        Refused: ``MALFORMED`` where bytes, groups and shape do not fit together, ``NON_FINITE`` where a scale
            or a value is not finite. The caller bounds the shape before (:mod:`protocol.frames.frame`).
    """
    if encoded.codec is Codec.TOPK:
        _require_scales(encoded, lows=0, steps=0)
        return _decode_topk(encoded)
    if encoded.codec is Codec.STEPS:
        step = steps.read_step(encoded.step)
        _require_scales(encoded, lows=0, steps=1)
        return steps.values_of(steps.unpack(encoded.data, encoded.size), step).reshape(encoded.shape)
    expected = (encoded.size * _ELEMENT_BITS[encoded.codec] + 7) // 8
    if len(encoded.data) != expected:
        what = f"{encoded.codec.value} of shape {encoded.shape}"
        raise Refused(Reason.MALFORMED, f"{what} takes {expected} bytes of data, got {len(encoded.data)}")
    if encoded.codec in BITS:
        return _decode_uniform(encoded)
    _require_scales(encoded, lows=0, steps=1 if encoded.codec is Codec.FLOAT16 else 0)
    if encoded.codec is Codec.UINT8:
        return np.frombuffer(encoded.data, np.uint8).astype(np.float32).reshape(encoded.shape)
    if encoded.codec is Codec.FLOAT16:
        values = _decode_half(encoded)
    else:
        values = np.frombuffer(encoded.data, F4).astype(np.float32)
    return _finite(values).reshape(encoded.shape)


def _finite(values: FloatArray) -> FloatArray:
    if not np.isfinite(values).all():
        raise Refused(Reason.NON_FINITE, "a value is NaN or infinite")
    return values


def _require_scales(encoded: Encoded, *, lows: int, steps: int) -> None:
    if len(encoded.low) != 4 * lows or len(encoded.step) != 4 * steps:
        raise Refused(
            Reason.MALFORMED,
            f"{encoded.codec.value} of shape {encoded.shape} needs {lows} low and {steps} step values, "
            f"got {len(encoded.low)} and {len(encoded.step)} bytes",
        )


def _encode_half(values: FloatArray, shape: tuple[int, ...]) -> Encoded:
    largest = float(np.abs(values).max(initial=0.0))
    scale = np.float32(max(math.ldexp(1.0, math.frexp(largest)[1] - _HALF_EXPONENT), float(_TINY)))
    scaled = np.clip(values.astype(np.float64) / np.float64(scale), -_HALF_TOP, _HALF_TOP)
    return Encoded(Codec.FLOAT16, shape, scaled.astype(_F2).tobytes(), step=scale.astype(F4).tobytes())


def _decode_half(encoded: Encoded) -> FloatArray:
    scale = np.frombuffer(encoded.step, F4).astype(np.float32)[0]
    if not (np.isfinite(scale) and scale >= 0):
        raise Refused(Reason.NON_FINITE, f"scale {scale} is not a finite number >= 0")
    with np.errstate(over="ignore", invalid="ignore"):
        values: FloatArray = np.frombuffer(encoded.data, _F2).astype(np.float32) * scale
    return values


def _encode_bytes(values: FloatArray, shape: tuple[int, ...]) -> Encoded:
    codes = np.clip(values, 0, 255).astype(np.uint8)
    if not np.array_equal(codes, values):
        raise ValueError(f"a uint8 tensor of shape {shape} holds other than whole numbers from 0 to 255")
    return Encoded(Codec.UINT8, shape, codes.tobytes())


def _encode_topk(values: FloatArray, shape: tuple[int, ...], keep: float) -> Encoded:
    if not 0 < keep <= 1:
        raise ValueError(f"keep must be above 0 and at most 1, got {keep}")
    flat = values.reshape(-1)
    count = min(flat.size, max(1, math.ceil(keep * flat.size)))
    if count == flat.size:
        chosen = np.arange(flat.size)
    else:
        chosen = np.sort(np.argpartition(np.abs(flat), flat.size - count)[flat.size - count :])
    return Encoded(Codec.TOPK, shape, chosen.astype(_U4).tobytes() + flat[chosen].astype(F4).tobytes())


def _decode_topk(encoded: Encoded) -> FloatArray:
    count, rest = divmod(len(encoded.data), 8)
    if rest or count > encoded.size:
        raise Refused(
            Reason.MALFORMED, f"topk of shape {encoded.shape} cannot have {len(encoded.data)} bytes of data"
        )
    chosen = np.frombuffer(encoded.data, _U4, count).astype(np.int64)
    if count and (chosen[-1] >= encoded.size or (np.diff(chosen) <= 0).any()):
        raise Refused(
            Reason.MALFORMED, f"topk positions must increase strictly and stay below {encoded.size} elements"
        )
    values = _finite(np.frombuffer(encoded.data, F4, count, offset=4 * count).astype(np.float32))
    out = np.zeros(encoded.size, np.float32)
    out[chosen] = values
    return out.reshape(encoded.shape)


def _group_count(shape: tuple[int, ...], codec: Codec, *, per_channel: bool) -> int:
    size = math.prod(shape)
    if size == 0:
        return 0
    if not per_channel or not shape:
        return 1
    return shape[0] if size >= shape[0] * CHANNEL_ELEMENTS[codec] else 1


def _decode_uniform(encoded: Encoded) -> FloatArray:
    groups, size = encoded.groups, encoded.size
    channels = encoded.shape[0] if encoded.shape else 1
    if groups not in ({1, channels} if size else {0}):
        raise Refused(Reason.MALFORMED, f"{groups} groups do not fit shape {encoded.shape}")
    _require_scales(encoded, lows=groups, steps=groups)
    if size == 0:
        return np.zeros(encoded.shape, np.float32)
    values = uniform_quantizer.dequantize(encoded.data, encoded.low, encoded.step, size, BITS[encoded.codec])
    return values.reshape(encoded.shape)
