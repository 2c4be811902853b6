"""The update frame: a header and named tensors in CBOR (RFC 8949).

    55799([2, header, {name: [codec, shape, data, low, step]}, checksum])

The tag makes the first three bytes D9 D9 F7, which no JSON text has, so a topic may carry both. ``header`` is
a map, read like the JSON of a control message; ``codec`` is a word; ``shape`` an array of unsigned integers;
``data``, ``low`` and ``step`` are byte strings (:mod:`protocol.frames.tensors`). ``checksum``, a byte
string, is the
CRC-32 (as in RFC 1952) of all bytes before its own four, big-endian: nothing
else would detect a flipped bit in a weight. Format 1, without checksum, stays readable; format
3 is a compressed frame (:mod:`protocol.frames.compression`). Nothing in a
frame is executed, and no length in it is trusted: :func:`protocol.frames.cbor.scan` checks all heads before
anything is allocated.
"""

import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeVar

import cbor2
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from protocol.base import Wire, first_fault
from protocol.errors import Reason, Refused
from protocol.frames import cbor, compression
from protocol.frames.tensors import BITS, Codec, Encoded, decode
from protocol.frames.together import decode_each

FORMAT: Final = 2
"""Written version of the layout above; 1 is read too, others are refused."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\Z")
_CODECS: Final = {codec.value: codec for codec in Codec}
_MIB: Final = 1 << 20
_PARTS: Final = 4
_CHECKED: Final = cbor.SELF_DESCRIBED + cbor.array_head(_PARTS) + cbor2.dumps(FORMAT)
"""First bytes of every frame of format 2."""
CRC_BYTES: Final = 4
_SLACK_BYTES: Final = 1 << 16
_CACHED: Final = 4096
"""Tensors whose names and heads are cached."""

H = TypeVar("H", bound=Wire)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a receiver. A coordinator that knows the model sets tighter ones.

    Attributes:
        max_bytes: of the whole frame.
        max_tensors: in one frame.
        max_elements: of one tensor.
        max_total_elements: of all tensors of a frame together.
        max_expansion: decoded bytes by byte of the frame: bounds the shape of a sparse tensor.
        max_name: characters of a tensor's name.
        max_dims: of one tensor.
        max_depth: of nested CBOR containers.
        max_items: CBOR items in all.
        max_text: bytes of one text in the header.
    """

    max_bytes: int = 64 * _MIB
    max_tensors: int = 4096
    max_elements: int = 64 * _MIB
    max_total_elements: int = 64 * _MIB
    max_expansion: int = 1024
    max_name: int = 128
    max_dims: int = 8
    max_depth: int = 12
    max_items: int = 128 * 1024
    max_text: int = 4096


DEFAULT_LIMITS: Final = Limits()


def is_frame(payload: bytes) -> bool:
    """Whether a payload is a frame (and not the JSON of a control message), by its first three bytes."""
    return payload[:3] == cbor.SELF_DESCRIBED


def digest(data: bytes | memoryview) -> str:
    """SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def encode_frame(header: Wire, tensors: Mapping[str, Encoded]) -> bytes:
    """Write a frame; equal headers and tensors give equal bytes, in any order of insertion.

    Raises:
        ValueError: a tensor's name has other characters than letters, digits and ``_ . - /``, or is too long.
    """
    parts = [_CHECKED, cbor2.dumps(header.model_dump(mode="json", exclude_none=True), canonical=True)]
    parts += [cbor.map_head(len(tensors))]
    for name, tensor in sorted(tensors.items()):
        parts.append(_entry_head(name, tensor.codec, tensor.shape))
        for content in (tensor.data, tensor.low, tensor.step):
            parts += [cbor.byte_string_head(len(content)), content]
    return sealed(b"".join([*parts, cbor.byte_string_head(CRC_BYTES)]))


@lru_cache(maxsize=_CACHED)
def _entry_head(name: str, codec: Codec, shape: tuple[int, ...]) -> bytes:
    """A tensor's entry up to its bytes: the same in every round."""
    if len(name) > DEFAULT_LIMITS.max_name or not _is_tensor_name(name):
        raise ValueError(f"tensor name {name[:200]!r} must match {_NAME.pattern} within 128 characters")
    return b"".join(
        [cbor2.dumps(name), cbor.array_head(5), cbor2.dumps(codec.value), cbor2.dumps(list(shape))]
    )


@lru_cache(maxsize=_CACHED)
def _is_tensor_name(name: str) -> bool:
    return _NAME.match(name) is not None


def sealed(body: bytes) -> bytes:
    """Append the checksum to the body of a frame of format 2."""
    return body + zlib.crc32(body).to_bytes(CRC_BYTES, "big")


def compressed(frame: bytes) -> bytes:
    """A frame of format 3 around one of format 2, or the same frame if that would not be shorter."""
    body = compression.compressed_body(frame)
    return frame if body is None else sealed(body + cbor.byte_string_head(CRC_BYTES))


def check_seal(data: bytes) -> None:
    """Verify the checksum before anything else: a damaged frame says nothing about its sender.

    The first bytes say whether there is a checksum. If they are not those of a frame, but the checksum is
    right for a frame with the correct first bytes, these were damaged.

    Raises:
        Refused: WRONG_DIGEST: a frame that was damaged in transit.
    """
    rest = memoryview(data)[len(_CHECKED) : -CRC_BYTES]
    for prefix in (_CHECKED, compression.PREFIX):
        fits = zlib.crc32(rest, zlib.crc32(prefix)) == int.from_bytes(data[-CRC_BYTES:], "big")
        if fits != data.startswith(prefix):
            where = "its first bytes are" if fits else "its checksum is"
            raise Refused(
                Reason.WRONG_DIGEST, f"frame of {len(data)} bytes: {where} wrong; damaged in transit"
            )


def decode_frame(
    data: bytes, header_type: type[H], limits: Limits = DEFAULT_LIMITS
) -> tuple[H, dict[str, NDArray[np.float32]]]:
    """Read a whole frame. Memory is bounded by the sizes of the frame and of its decoded tensors.

    Raises:
        Refused: anything is wrong; the detail names the tensor, field or byte.
    """
    header, tensors = open_frame(data, header_type, limits)
    return header, decode_tensors(tensors)


def decode_tensors(tensors: Mapping[str, Encoded]) -> dict[str, NDArray[np.float32]]:
    """Decode the tensors that :func:`open_frame` returned.

    Raises:
        Refused: values are wrong, as in :func:`decode_frame`; the detail names the tensor.
    """
    together, decoded = decode_each(tensors), {}
    for name, tensor in tensors.items():
        try:
            decoded[name] = together[name] if name in together else decode(tensor)
        except Refused as refused:
            raise Refused(refused.reason, f"tensor {name!r}: {refused.detail}") from None
    return decoded


def open_frame(
    data: bytes, header_type: type[H], limits: Limits = DEFAULT_LIMITS
) -> tuple[H, dict[str, Encoded]]:
    """Read a frame's header and check its tensors' names, shapes and sizes, without decoding their values.

    Raises:
        Refused: as :func:`decode_frame`, except for wrong values.
    """
    if len(data) > limits.max_bytes:
        raise Refused(Reason.TOO_LARGE, f"frame of {len(data)} bytes, at most {limits.max_bytes}")
    check_seal(data)
    if not is_frame(data):
        raise Refused(Reason.MALFORMED, f"not a frame: it begins with {data[:3].hex()} instead of d9d9f7")
    if data.startswith(compression.PREFIX):
        return _open_plain(_decompressed(data, limits), header_type, limits, len(data))
    return _open_plain(data, header_type, limits, len(data))


def plain(data: bytes, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """A frame of format 1 or 2: that inside of a compressed one, or ``data`` itself.

    Raises:
        Refused: as :func:`open_frame`, for a compressed frame.
    """
    if not data.startswith(compression.PREFIX):
        return data
    check_seal(data)
    return _decompressed(data, limits)


def _decompressed(data: bytes, limits: Limits) -> bytes:
    """The frame inside of a compressed one, which is none."""
    cbor.scan(data, len(cbor.SELF_DESCRIBED), max_depth=1, max_items=5, max_text=0)
    match cbor2.loads(memoryview(data)[len(cbor.SELF_DESCRIBED) :]):
        case [int(_), int(size), bytes(content), bytes(crc)] if len(crc) == CRC_BYTES and size is not True:
            most = min(limits.max_bytes, len(data) * limits.max_expansion + _SLACK_BYTES)
            inside = compression.decompressed(content, size, most)
        case _:
            raise Refused(Reason.MALFORMED, "a compressed frame is [3, size, content, checksum]")
    check_seal(inside)
    if not inside.startswith(_CHECKED):
        raise Refused(Reason.MALFORMED, "a compressed frame holds a frame of another format than 2")
    return inside


def _open_plain(
    data: bytes, header_type: type[H], limits: Limits, sent_bytes: int
) -> tuple[H, dict[str, Encoded]]:
    """Open a frame that is not compressed; ``sent_bytes`` bound what its shapes may claim."""
    start = len(cbor.SELF_DESCRIBED)
    cbor.scan(data, start, max_depth=limits.max_depth, max_items=limits.max_items, max_text=limits.max_text)
    try:
        content = cbor2.loads(memoryview(data)[start:])
    except cbor2.CBORDecodeError as error:
        raise Refused(Reason.MALFORMED, f"CBOR: {error}"[:500]) from None
    match content:
        case [2, dict(header), dict(tensors), bytes(crc)] if len(crc) == CRC_BYTES:
            return _header(header, header_type), _tensors(tensors, limits, sent_bytes)
        case [int(version), dict(header), dict(tensors)] if version == 1 and version is not True:
            return _header(header, header_type), _tensors(tensors, limits, sent_bytes)
        case [int(version), *_] if version not in {1, FORMAT}:
            raise Refused(
                Reason.MALFORMED, f"frame format {version}; this release reads 1 to {compression.FORMAT}"
            )
        case _:
            raise Refused(Reason.MALFORMED, "a frame is [2, header map, tensor map, checksum]")


def _header(content: dict[str, Any], header_type: type[H]) -> H:
    """The header, parsed like the JSON of a control message."""
    try:
        text = json.dumps(content, default=_refuse_bytes)
        return header_type.model_validate_json(text, strict=True)  # true and "1" are no numbers
    except ValidationError as error:
        raise Refused(Reason.MALFORMED, first_fault(error, "header")) from None


def _refuse_bytes(value: object) -> NoReturn:
    raise Refused(Reason.MALFORMED, f"header: {type(value).__name__} instead of text, number, list or map")


def _tensors(content: dict[str, Any], limits: Limits, frame_bytes: int) -> dict[str, Encoded]:
    if len(content) > limits.max_tensors:
        raise Refused(Reason.TOO_LARGE, f"{len(content)} tensors, at most {limits.max_tensors}")
    tensors, total = {}, 0
    limit = min(limits.max_total_elements, (frame_bytes * limits.max_expansion + _SLACK_BYTES) // 4)
    for name, item in content.items():
        if len(name) > limits.max_name or not _is_tensor_name(name):
            raise Refused(
                Reason.MALFORMED, f"tensor name {name[:200]!r} is too long or has invalid characters"
            )
        tensors[name] = _tensor(name, item, limits)
        total += tensors[name].size
        if total > limit:
            raise Refused(
                Reason.TOO_LARGE,
                f"tensor {name!r} brings the frame to {total} elements; {frame_bytes} bytes may hold {limit}",
            )
    return tensors


def _tensor(name: str, item: object, limits: Limits) -> Encoded:
    """One entry of the tensor map, types and shape checked."""
    match item:
        case [str(word), list(dims), bytes(data), bytes(low), bytes(step)]:
            pass
        case _:
            raise Refused(Reason.MALFORMED, f"tensor {name!r} is not [codec, shape, data, low, step]")
    codec = _CODECS.get(word)
    if codec is None:
        raise Refused(Reason.MALFORMED, f"tensor {name!r}: unknown codec {word[:40]!r}")
    shape = tuple(dim for dim in dims if type(dim) is int and dim >= 0)
    if len(shape) != len(dims) or len(dims) > limits.max_dims:
        raise Refused(
            Reason.MALFORMED,
            f"tensor {name!r}: a shape is at most {limits.max_dims} whole numbers, from 0 up",
        )
    # zeros count as ones: NumPy cannot make an empty array whose other dimensions overflow
    if math.prod(max(dim, 1) for dim in shape) > limits.max_elements:
        raise Refused(
            Reason.TOO_LARGE, f"tensor {name!r}: shape {shape} has over {limits.max_elements} elements"
        )
    return Encoded(codec, shape, data, low, step, len(low) // 4 if codec in BITS else 0)
