"""Packed blobs: shorter ways to a blob of a version, from its parent or from nothing.

A packed blob is a frame with the same header, compressed. A difference is added to a blob that the device
has, its parent: tensors of codec ``steps`` to the parent's float32 values; all others replace the parent's;
what it does not name stays. The manifest says what each makes, and from which parent.

The result is checked against its digest, so no way needs trust, and each gives the same bytes: a value is a
whole number times a power of two, which float32 holds exactly, and its addition is one IEEE 754 operation,
rounded to the nearest, on every machine. NumPy's ``add`` reads two float32 and writes one: no wider register,
no fused operation.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from protocol.errors import Reason, Refused
from protocol.frames import steps
from protocol.frames.frame import DEFAULT_LIMITS, Limits, compressed, digest, encode_frame, open_frame, plain
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import Codec, Encoded, decode, encode, encode_steps
from protocol.messages import BlobRef


def packed_difference(
    name: str, parent: bytes, tensors: Mapping[str, Encoded], limits: Limits = DEFAULT_LIMITS
) -> tuple[bytes, bytes]:
    """A packed difference, and the blob that it makes.

    Args:
        name: of the blob.
        parent: the frame of the parent's blob.
        tensors: what to add (codec ``steps``) or to replace; the others stay.
        limits: of the frames.

    Raises:
        Refused: a tensor that is to be added has no parent of its shape.
    """
    result = encode_frame(BlobHeader(name=name), _joined(name, parent, tensors, limits))
    return compressed(encode_frame(BlobHeader(name=name), tensors)), result


def packed_whole(blob: bytes, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """A packed blob that makes this one from nothing: values on a common grid become whole numbers."""
    header, tensors = open_frame(blob, BlobHeader, limits)
    packed = {name: _exact_steps(tensor) for name, tensor in tensors.items()}
    return compressed(encode_frame(header, packed))


def _exact_steps(tensor: Encoded) -> Encoded:
    """The same values as whole numbers of a step; the tensor itself if that is not possible."""
    if tensor.codec is not Codec.FLOAT32:
        return tensor
    values = decode(tensor)
    step = steps.exact_step(values)
    return tensor if step is None else encode_steps(values, step)


def unpacked(
    packed: bytes, parent: bytes | None, name: str, wanted: BlobRef, limits: Limits = DEFAULT_LIMITS
) -> bytes:
    """The blob that a packed one makes, verified.

    Args:
        packed: a difference, or a whole one.
        parent: the frame that a difference is added to; None for a whole one.
        name: of the blob.
        wanted: the result.
        limits: of frames; the result's size bounds the packed one's.

    Raises:
        Refused: it is of another blob, or makes other bytes than ``wanted``: it is of another parent, or
        wrong.
    """
    bound = replace(limits, max_total_elements=min(limits.max_total_elements, wanted.size))
    header, tensors = open_frame(plain(packed, _inside(limits, wanted)), BlobHeader, bound)
    if header.name != name:
        raise Refused(Reason.WRONG_TENSORS, f"packed blob of {header.name!r}, not {name!r}")
    if parent is None:
        made = {key: _value(key, tensor) for key, tensor in tensors.items()}
    else:
        made = _joined(name, parent, tensors, limits)
    result = encode_frame(BlobHeader(name=name), made)
    if digest(result) != wanted.digest:
        raise Refused(Reason.WRONG_DIGEST, f"packed blob of {name!r} makes other bytes than {wanted.digest}")
    return result


def _inside(limits: Limits, wanted: BlobRef) -> Limits:
    """Limits of the frame in a packed blob: little longer than its result; zeros alone compress far."""
    most = min(limits.max_bytes, 2 * wanted.size + (1 << 16))
    return replace(limits, max_bytes=most, max_expansion=max(limits.max_expansion, 1 << 16))


def _value(name: str, tensor: Encoded) -> Encoded:
    if tensor.codec is not Codec.STEPS:
        return tensor
    return encode(_decoded(name, tensor), Codec.FLOAT32)


def _joined(name: str, parent: bytes, tensors: Mapping[str, Encoded], limits: Limits) -> dict[str, Encoded]:
    """The parent's tensors with the differences added, and others replaced."""
    header, made = open_frame(parent, BlobHeader, limits)
    if header.name != name:
        raise Refused(Reason.WRONG_TENSORS, f"the parent is blob {header.name!r}, not {name!r}")
    for key, tensor in tensors.items():
        if tensor.codec is not Codec.STEPS:
            made[key] = tensor
            continue
        before = made.get(key)
        if before is None or before.codec is not Codec.FLOAT32 or before.shape != tensor.shape:
            raise Refused(
                Reason.WRONG_TENSORS, f"tensor {key!r}: the parent has no float32 of shape {tensor.shape}"
            )
        total = np.add(decode(before), _decoded(key, tensor), dtype=np.float32)
        if not np.isfinite(total).all():
            raise Refused(Reason.NON_FINITE, f"tensor {key!r}: a sum is beyond float32's range")
        made[key] = encode(total, Codec.FLOAT32)
    return made


def _decoded(name: str, tensor: Encoded) -> steps.FloatArray:
    try:
        return decode(tensor)
    except Refused as refused:
        raise Refused(refused.reason, f"tensor {name!r}: {refused.detail}") from None
