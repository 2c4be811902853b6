"""Is an ONNX model closed: arithmetic on its inputs and its own constants, and nothing else?

Models and feature graphs come from the wire. The format can name files of this machine as constants (older
releases of ONNX Runtime read any path), and can hold operators of other libraries, functions that unfold
without end, and loops whose data decide how long they run. Export writes none of these, so whatever has one
is refused before ONNX Runtime sees it. Reads protobuf's wire format by hand: a device has no onnx.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from protocol.errors import Reason, Refused

MAX_FIELDS: Final = 500_000
"""Of messages that are looked into: a graph of a thousand nodes has some 20,000."""
_VARINT_BYTES: Final = 10
_FIXED: Final = {1: 8, 5: 4}
"""Bytes of a value by protobuf's wire type."""
_DOMAINS: Final = frozenset({b"", b"ai.onnx"})
_NODE: Final = "node"

_Inner: TypeAlias = Mapping[int, str]
_WITHIN: Final[Mapping[str, _Inner]] = {
    "model": {7: "graph"},
    "graph": {1: _NODE, 5: "tensor"},
    _NODE: {5: "attribute"},
    "attribute": {5: "tensor", 10: "tensor"},
    "tensor": {},
}
"""By message, the fields that are looked into, as the numbers of onnx.proto3."""
_FORBIDDEN: Final[Mapping[str, _Inner]] = {
    "model": {20: "training information", 25: "functions of its own"},
    "graph": {15: "sparse constants"},
    _NODE: {},
    "attribute": {
        6: "a graph inside an operator (a loop or a branch)",
        11: "graphs inside an operator (a loop or a branch)",
        22: "sparse constants",
        23: "sparse constants",
    },
    "tensor": {13: "constants in files outside of it"},
}
_DATA_LOCATION: Final = 14
_DOMAIN: Final = 7


def require_closed(data: bytes, what: str) -> None:
    """Look through a serialized model.

    Args:
        data: of the model.
        what: it is called so in words.

    Raises:
        Refused: it has a part that export never writes, or is no model.
    """
    try:
        _Look(memoryview(data)).through()
    except Refused as error:
        raise Refused(error.reason, f"{what} does not load: {error.detail}") from None


@dataclass
class _Look:
    """One look through a model."""

    data: memoryview
    fields: int = 0

    def through(self) -> None:
        todo = [("model", 0, len(self.data))]
        while todo:
            message, start, end = todo.pop()
            for number, value, at, stop in self._fields(start, end):
                if inner := _WITHIN[message].get(number):
                    if value is not None:
                        raise _damaged(at)
                    todo.append((inner, at, stop))
                self._refuse(message, number, value, self.data[at:stop])

    @staticmethod
    def _refuse(message: str, number: int, value: int | None, data: memoryview) -> None:
        words = _FORBIDDEN[message].get(number, "")
        if message == "tensor" and number == _DATA_LOCATION and value:
            words = _FORBIDDEN[message][13]
        if message == _NODE and number == _DOMAIN and bytes(data[:64]) not in _DOMAINS:
            words = f"an operator of {bytes(data[:64]).decode(errors='replace')!r}"
        if words:
            raise Refused(Reason.MALFORMED, f"it has {words}, which is never taken from the wire")

    def _fields(self, at: int, end: int) -> Iterator[tuple[int, int | None, int, int]]:
        """Number, value (None where it is bytes), and where the value begins and ends."""
        while at < end:
            self.fields += 1
            if self.fields > MAX_FIELDS:
                raise Refused(Reason.TOO_LARGE, f"it has more than {MAX_FIELDS} parts")
            key, at = self._varint(at, end)
            number, kind = key >> 3, key & 7
            value: int | None = None
            begin = at
            if kind == 0:
                value, at = self._varint(at, end)
            elif kind == 2:  # noqa: PLR2004 - protobuf's wire type of bytes
                size, begin = self._varint(at, end)
                at = begin + size
            elif kind in _FIXED:
                value, at = 0, at + _FIXED[kind]
            else:
                raise _damaged(at)
            if at > end:
                raise _damaged(begin)
            yield number, value, begin, at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = 0
        for i in range(_VARINT_BYTES):
            if at + i >= end:
                break
            byte = self.data[at + i]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
                return value, at + i + 1
        raise _damaged(at)


def _damaged(at: int) -> Refused:
    return Refused(Reason.MALFORMED, f"no ONNX model: byte {at} makes no sense")
