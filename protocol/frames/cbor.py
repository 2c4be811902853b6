"""Checks the structure of CBOR (RFC 8949) before it is decoded.

Only the heads of data items are read. So every length, count and depth is verified before anything is
allocated, and the decoder meets no false length, indefinite item, active tag or duplicate key. The remaining
subset of CBOR is the data model of JSON, plus byte strings.
"""

import math
import struct
from dataclasses import dataclass, field
from typing import Final

from protocol.errors import Reason, Refused

SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"
"""Tag 55799 (RFC 8949, 3.4.6): no JSON text and no other CBOR of ours begins like this."""

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_DIRECT: Final = 24  # arguments below are in the first byte; 24 to 27: 1, 2, 4 or 8 bytes follow
_LAST_SIZED: Final = 27
_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_CONSTANTS: Final = frozenset({20, 21, 22})  # false, true, null


@dataclass(slots=True)
class _Open:
    """A container whose items are being read; ``keys`` is None for an array."""

    left: int
    keys: set[bytes] | None = field(default=None)

    @property
    def expects_key(self) -> bool:
        return self.keys is not None and self.left % 2 == 0


def head(major: int, argument: int) -> bytes:
    """The shortest head of a data item of that major type (RFC 8949, 3)."""
    if argument < _DIRECT:
        return bytes((major << 5 | argument,))
    for info, (size, code) in enumerate(((1, "B"), (2, ">H"), (4, ">I"), (8, ">Q")), start=_DIRECT):
        if argument < 1 << (8 * size):
            return bytes((major << 5 | info,)) + struct.pack(code, argument)
    raise ValueError(f"{argument} does not fit the head of a CBOR item")


def byte_string_head(length: int) -> bytes:
    """The head of a byte string."""
    return head(_BYTES, length)


def array_head(count: int) -> bytes:
    """The head of an array of ``count`` items."""
    return head(_ARRAY, count)


def map_head(count: int) -> bytes:
    """The head of a map of ``count`` pairs."""
    return head(_MAP, count)


def scan(data: bytes, start: int, *, max_depth: int, max_items: int, max_text: int) -> None:
    """Check that ``data[start:]`` is exactly one data item within the bounds.

    Costs time and memory in the number of items (and of keys), never in a claimed length.

    Args:
        data: the whole frame.
        start: where the item begins.
        max_depth: containers within containers.
        max_items: data items in all, keys included.
        max_text: bytes of one text string.

    Raises:
        Refused: ``MALFORMED``, ``TOO_LARGE`` or ``NON_FINITE``; the detail names the offset.
    """
    position, items, stack = start, 0, list[_Open]()
    while True:
        at, items = position, items + 1
        if items > max_items:
            raise Refused(Reason.TOO_LARGE, f"more than {max_items} CBOR items")
        major, argument, position = _read_head(data, position)
        content = _content_bytes(data, position, major, argument, max_text)
        if stack:
            _take_slot(stack[-1], at, major, data[position : position + content] if major == _TEXT else b"")
        position += content
        if major in {_ARRAY, _MAP} and argument:
            stack.append(_Open(argument) if major == _ARRAY else _Open(2 * argument, set()))
            if len(stack) > max_depth:
                raise Refused(Reason.TOO_LARGE, f"CBOR nested deeper than {max_depth} at byte {at}")
        while stack and stack[-1].left == 0:
            stack.pop()
        if not stack:
            break
    if position != len(data):
        raise Refused(Reason.MALFORMED, f"{len(data) - position} bytes after the end of the CBOR item")


def _read_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Major type, argument, and the position after the head. Checks floats and constants."""
    if at >= len(data):
        raise Refused(Reason.MALFORMED, f"CBOR ends in the middle of an item, at byte {at}")
    major, info = data[at] >> 5, data[at] & 31
    if info > _LAST_SIZED:
        raise Refused(
            Reason.MALFORMED, f"CBOR head {data[at]:#04x} at byte {at}: indefinite length or reserved"
        )
    size = 0 if info < _DIRECT else 1 << (info - _DIRECT)
    if at + 1 + size > len(data):
        raise Refused(Reason.MALFORMED, f"CBOR ends in the middle of a head, at byte {at}")
    argument = int.from_bytes(data[at + 1 : at + 1 + size]) if size else info
    if major == _TAG:
        raise Refused(Reason.MALFORMED, f"CBOR tag {argument} at byte {at}: no tag is allowed here")
    if major == _SIMPLE and info not in _CONSTANTS:
        if info not in _FLOATS:
            raise Refused(Reason.MALFORMED, f"CBOR simple value {argument} at byte {at} is not allowed")
        if not math.isfinite(struct.unpack_from(_FLOATS[info], data, at + 1)[0]):
            raise Refused(Reason.NON_FINITE, f"a number at byte {at} is NaN or infinite")
    return major, argument, at + 1 + size


def _content_bytes(data: bytes, position: int, major: int, argument: int, max_text: int) -> int:
    """Bytes of content after the head; refuses a count or length beyond the rest of the data."""
    rest = len(data) - position
    needed = {_BYTES: argument, _TEXT: argument, _ARRAY: argument, _MAP: 2 * argument}.get(major, 0)
    if needed > rest:
        what = "bytes" if major in {_BYTES, _TEXT} else "items"
        raise Refused(
            Reason.MALFORMED, f"CBOR claims {argument} {what} at byte {position}, only {rest} bytes are left"
        )
    if major == _TEXT and argument > max_text:
        raise Refused(Reason.TOO_LARGE, f"text of {argument} bytes at byte {position}, at most {max_text}")
    return argument if major in {_BYTES, _TEXT} else 0


def _take_slot(parent: _Open, at: int, major: int, text: bytes) -> None:
    """Count one item of a container; check it if it is a key."""
    if parent.expects_key and parent.keys is not None:
        if major != _TEXT:
            raise Refused(Reason.MALFORMED, f"the map key at byte {at} is not text")
        if text in parent.keys:
            raise Refused(Reason.MALFORMED, f"key {text[:128].decode(errors='replace')!r} appears twice")
        parent.keys.add(text)
    parent.left -= 1
