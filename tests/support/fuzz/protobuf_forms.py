"""The same message in encodings that no protobuf writer uses: parsers may disagree about them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import onnx

FIFTH = (0x10, 0x20, 0x40, 0x70)
"""Fifth bytes of a tag with bits beyond the 32 of a tag: C++ drops them."""


@dataclass
class Item:
    """A field as it is written: its payload, or its items."""

    number: int
    wire_type: int
    payload: bytes = b""
    """The bytes of a varint, or the content after a length."""
    inner: "list[Item] | None" = field(default=None)


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def parse(data: bytes, descriptor: Any = onnx.ModelProto.DESCRIPTOR) -> list[Item]:
    """A message of an ONNX model, as protobuf wrote it."""
    found, at = [], 0
    while at < len(data):
        tag, at = _read(data, at)
        item = Item(tag >> 3, tag & 7)
        begin = at
        if item.wire_type == 0:
            _, at = _read(data, at)
        elif item.wire_type == 2:
            size, begin = _read(data, at)
            at = begin + size
        else:
            at += {1: 8, 5: 4}[item.wire_type]
        item.payload = data[begin:at]
        known = descriptor.fields_by_number[item.number].message_type
        if known is not None:
            item.inner = parse(item.payload, known)
        found.append(item)
    return found


def each(items: list[Item]) -> Iterator[Item]:
    """All items of a message, and those within."""
    for item in items:
        yield item
        yield from each(item.inner or [])


Bend = Callable[[bytes, bytes, bytes], bytes]
"""Tag, length (empty if there is none) and payload -> another encoding of the field."""


def write(items: list[Item], bent: Item | None = None, bend: Bend | None = None) -> bytes:
    """The message with one item in another encoding."""
    out = b""
    for item in items:
        payload = item.payload if item.inner is None else write(item.inner, bent, bend)
        tag = varint(item.number << 3 | item.wire_type)
        length = varint(len(payload)) if item.wire_type == 2 else b""
        plain = tag + length + payload
        out += bend(tag, length, payload) if bend is not None and item is bent else plain
    return out


def five(tag: bytes, fifth: int) -> bytes:
    """A tag of five bytes, the last of them beyond 32 bits."""
    value, _ = _read(tag, 0)
    return bytes([(value >> 7 * i) & 0x7F | 0x80 for i in range(4)]) + bytes([fifth])


def long(number: bytes, size: int = 5) -> bytes:
    """A varint that is longer than necessary."""
    value, _ = _read(number, 0)
    return bytes([(value >> 7 * i) & 0x7F | 0x80 for i in range(size - 1)]) + bytes(
        [(value >> 7 * (size - 1))]
    )


def _zero(tag: bytes, length: bytes, payload: bytes) -> bytes:
    return bytes([tag[0] & 7]) + length + payload


BENDS: dict[str, Bend] = {
    **{f"five-{b:02x}": (lambda t, n, p, b=b: five(t, b) + n + p) for b in FIFTH},
    "five-00": lambda t, n, p: five(t, 0) + n + p,
    "ten": lambda t, n, p: long(t, 9)[:-1] + b"\x80\x01" + n + p,
    "long tag": lambda t, n, p: long(t, 3) + n + p,
    "long length": lambda t, n, p: t + (long(n, 5) if n else n) + p,
    "twice": lambda t, n, p: (t + n + p) * 2,
    "field zero": _zero,
    "in a group": lambda t, n, p: b"\x0b" + t + n + p + b"\x0c",
    "unknown before": lambda t, n, p: varint(5000 << 3) + b"\x01" + t + n + p,
    "end of a group": lambda t, n, p: b"\x0c" + t + n + p,
}
"""Some do not apply to all fields: without a length there is no long one."""


def graph_bent(data: bytes, name: str) -> bytes:
    """A model with ``graph`` in one of the encodings of :data:`BENDS`."""
    items = parse(data)
    (graph,) = (item for item in items if item.number == 7)
    return write(items, graph, BENDS[name])
