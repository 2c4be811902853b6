"""Checks the structure of CBOR (RFC 8949) before it is decoded.

Only the heads of data items are read. So every length, count and depth is verified before anything is
allocated, and the decoder meets no false length, indefinite item, active tag or duplicate key. The remaining
subset of CBOR is the data model of JSON, plus byte strings.
"""

import math
import struct
from functools import lru_cache
from typing import Final, cast

from protocol.errors import Reason, Refused

SELF_DESCRIBED: Final = b"\xd9\xd9\xf7"
"""Tag 55799 (RFC 8949, 3.4.6): no JSON text and no other CBOR of ours begins like this."""

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SIMPLE = range(8)
_DIRECT: Final = 24  # arguments below are in the first byte; 24 to 27: 1, 2, 4 or 8 bytes follow
_LAST_SIZED: Final = 27
_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_CONTAINERS: Final = frozenset({_ARRAY, _MAP})
_NOTHING: Final = 0xFF
"""No head begins like this; stands for the end of the data."""
_CONSTANTS: Final = frozenset({20, 21, 22})  # false, true, null


def head(major: int, argument: int) -> bytes:
    """The shortest head of a data item of that major type (RFC 8949, 3)."""
    if argument < _DIRECT:
        return bytes((major << 5 | argument,))
    for info, (size, code) in enumerate(((1, "B"), (2, ">H"), (4, ">I"), (8, ">Q")), start=_DIRECT):
        if argument < 1 << (8 * size):
            return bytes((major << 5 | info,)) + struct.pack(code, argument)
    raise ValueError(f"{argument} does not fit the head of a CBOR item")


@lru_cache(maxsize=4096)
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
    position = _walk(data, start, max_depth, max_items, max_text)
    if position != len(data):
        raise Refused(Reason.MALFORMED, f"{len(data) - position} bytes after the end of the CBOR item")


def _walk(data: bytes, start: int, max_depth: int, max_items: int, max_text: int) -> int:
    """Check one data item as :func:`scan`; the position after it.

    One loop with its state in local variables: calls for each item would be most of what an update costs.
    """
    end, position, items = len(data), start, 0
    left, keys = 1, cast("set[bytes] | None", None)  # of the innermost container; None: not a map
    outer: list[tuple[int, set[bytes] | None]] = []
    while left:
        at, items = position, items + 1
        if items > max_items:
            raise Refused(Reason.TOO_LARGE, f"more than {max_items} CBOR items")
        first = data[at] if at < end else _NOTHING
        major, argument, position = first >> 5, first & 31, at + 1
        if argument >= _DIRECT or major >= _TAG:
            argument, position = _long_head(data, at)
        content = 0
        if _BYTES <= major <= _MAP:
            if (argument << (major == _MAP)) > end - position or (major == _TEXT and argument > max_text):
                raise _too_long(end - position, position, major, argument, max_text)
            content = argument if major <= _TEXT else 0
        if keys is not None and not left & 1:
            _add_key(keys, at, major, data[position : position + content])
        left -= 1
        position += content
        if major in _CONTAINERS and argument:
            outer.append((left, keys))
            left, keys = (argument, None) if major == _ARRAY else (2 * argument, set())
            if len(outer) > max_depth:
                raise Refused(Reason.TOO_LARGE, f"CBOR nested deeper than {max_depth} at byte {at}")
        while not left and outer:
            left, keys = outer.pop()
    return position


def _long_head(data: bytes, at: int) -> tuple[int, int]:
    """Argument, and the position after the head. Checks tags, floats and constants."""
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
    return argument, at + 1 + size


def _too_long(rest: int, position: int, major: int, argument: int, max_text: int) -> Refused:
    """The refusal of a count or length beyond the rest of the data, or of a text above its limit."""
    if (argument << (major == _MAP)) > rest:
        what = "items" if major in _CONTAINERS else "bytes"
        return Refused(
            Reason.MALFORMED, f"CBOR claims {argument} {what} at byte {position}, only {rest} bytes are left"
        )
    return Refused(Reason.TOO_LARGE, f"text of {argument} bytes at byte {position}, at most {max_text}")


def _add_key(keys: set[bytes], at: int, major: int, text: bytes) -> None:
    """Check an item that is a key."""
    if major != _TEXT:
        raise Refused(Reason.MALFORMED, f"the map key at byte {at} is not text")
    if text in keys:
        raise Refused(Reason.MALFORMED, f"key {text[:128].decode(errors='replace')!r} appears twice")
    keys.add(text)
