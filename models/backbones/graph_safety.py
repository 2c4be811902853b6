"""Checks that an ONNX model is only arithmetic on its inputs and its own constants.

Models and encoder models come from the network. The format can name files of this machine as constants, and
can hold operators of other libraries, functions that unfold without end, and loops whose data decide how long
they run. So this is an allow-list: a model is accepted if every field of it is one that export writes, in the
one form in which protobuf writes it. Unknown fields are refused, never skipped: two parsers may disagree
about a form that no writer uses (a tag of five bytes whose upper bits one of them drops), and one may run
what the other skips. ``tests/property/test_fuzz_closed_graph.py`` compares it with onnx's own parsers. It
parses protobuf's wire format itself, because a device has no onnx.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from protocol.errors import Reason, Refused

MAX_FIELDS: Final = 500_000
"""Limit of messages, and of numbers in packed fields: an ONNX model of a thousand nodes has some 20,000."""
_VARINT_BYTES: Final = 10
_MAX_INT32: Final = 2**31
_MAX_TAG: Final = 2**32
_MAX_INT64: Final = 2**64
_MORE: Final = 0x80
"""The bit of a varint's byte that announces another byte."""
_FLOAT_BYTES: Final = 4
_DOMAINS: Final = frozenset({b"", b"ai.onnx"})
_KINDS: Final = frozenset({1, 2, 3, 4, 6, 7, 8})
"""Types of attributes: FLOAT, INT, STRING, TENSOR, FLOATS, INTS, STRINGS."""
_ORT_FORMAT: Final = slice(4, 8), b"ORTM"
"""Begins a file of ONNX Runtime's own format, which another parser reads. An ONNX model may contain these
bytes too."""


class _Field(NamedTuple):
    """A field that export writes.

    Attributes:
        form: ``int``, ``int32``, ``float``, ``bytes``, ``text`` (UTF-8), ``domain`` (ONNX's own), ``inside``
            (zero: a constant is in the file), ``kind`` (of an attribute), ``int32s``, ``int64s`` and
            ``floats`` (packed), or a message of :data:`_MESSAGES`.
        many: it may be repeated.
    """

    form: str
    many: bool = False


_WIRE_TYPE: Final[Mapping[str, int]] = {"int": 0, "int32": 0, "inside": 0, "kind": 0, "float": 5}
"""Wire type by form; all others are bytes with a length before them: 2."""
_DOC: Final = _Field("text")
_MESSAGES: Final[Mapping[str, Mapping[int, _Field]]] = {
    "model": {
        1: _Field("int"),  # ir_version
        2: _Field("text"),  # producer_name
        3: _Field("text"),  # producer_version
        6: _DOC,
        7: _Field("graph"),
        8: _Field("operator set", many=True),
    },
    "operator set": {1: _Field("domain"), 2: _Field("int")},
    "graph": {
        1: _Field("node", many=True),
        2: _Field("text"),  # name
        5: _Field("tensor", many=True),  # initializer
        10: _DOC,
        11: _Field("value", many=True),  # input
        12: _Field("value", many=True),  # output
    },
    "node": {
        1: _Field("text", many=True),  # input
        2: _Field("text", many=True),  # output
        3: _Field("text"),  # name
        4: _Field("text"),  # op_type
        5: _Field("attribute", many=True),
        6: _DOC,
        7: _Field("domain"),
    },
    "attribute": {
        1: _Field("text"),  # name
        2: _Field("float"),
        3: _Field("int"),
        4: _Field("bytes"),  # s
        5: _Field("tensor"),
        7: _Field("float", many=True),
        8: _Field("int", many=True),
        9: _Field("bytes", many=True),  # strings
        20: _Field("kind"),  # type
    },
    "tensor": {
        1: _Field("int", many=True),  # dims
        2: _Field("int32"),  # data_type
        4: _Field("floats"),
        5: _Field("int32s"),  # int32_data
        7: _Field("int64s"),  # int64_data
        8: _Field("text"),  # name
        9: _Field("bytes"),  # raw_data
        12: _DOC,
        14: _Field("inside"),  # data_location
    },
    "value": {1: _Field("text"), 2: _Field("type"), 3: _DOC},
    "type": {1: _Field("tensor type")},
    "tensor type": {1: _Field("int32"), 2: _Field("shape")},
    "shape": {1: _Field("dimension", many=True)},
    "dimension": {1: _Field("int"), 2: _Field("text")},
}
"""Accepted fields by message, with their numbers in onnx.proto3."""
_OUTSIDE: Final = "constants in files outside of it"
_BRANCH: Final = "a graph inside an operator (a loop or a branch)"
_REFUSED: Final[Mapping[tuple[str, int], str]] = {
    ("model", 20): "training information",
    ("model", 25): "functions of its own",
    ("graph", 15): "sparse constants",
    ("attribute", 6): _BRANCH,
    ("attribute", 11): _BRANCH,
    ("attribute", 22): "sparse constants",
    ("attribute", 23): "sparse constants",
    ("tensor", 13): _OUTSIDE,
}
"""Names of refused fields for messages; all others are named by number."""


def require_safe_model(data: bytes | memoryview, what: str) -> None:
    """Check a serialized model. ONNX Runtime must be given these bytes, and no others.

    Args:
        data: of the model.
        what: its name in messages.

    Raises:
        Refused: it has a part that export never writes, or is no model.
    """
    try:
        _Look(memoryview(data)).through()
    except Refused as error:
        raise Refused(error.reason, f"{what} does not load: {error.detail}") from None


@dataclass
class _Look:
    """One pass through a model."""

    data: memoryview
    fields: int = 0

    def through(self) -> None:
        place, ort = _ORT_FORMAT
        if self.data[place] == ort:
            raise _strange("the form of ONNX Runtime's own files")
        todo = [("model", 0, len(self.data))]
        while todo:
            message, start, end = todo.pop()
            numbers: set[int] = set()
            for number, field, value, begin, stop in self._fields(message, start, end):
                if number in numbers and not field.many:
                    raise _strange(f"field {number} of a {message} twice")
                numbers.add(number)
                if field.form in _MESSAGES:
                    todo.append((field.form, begin, stop))
                else:
                    self._require(field.form, value, begin, stop)
            if message == "model" and 7 not in numbers:  # noqa: PLR2004 - ``ModelProto.graph``
                raise Refused(Reason.MALFORMED, "no ONNX model: it has no graph")

    def _require(self, form: str, value: int, begin: int, stop: int) -> None:
        """Raises Refused if a value does not have the form."""
        if form == "inside" and value:
            raise _strange(_OUTSIDE)
        if form == "kind" and value not in _KINDS:
            raise _strange(f"an attribute of kind {value}")
        if (form == "int32" and value >= _MAX_INT32) or (form == "floats" and (stop - begin) % _FLOAT_BYTES):
            raise _damaged(begin)
        if form in {"int32s", "int64s"}:
            while begin < stop:
                self._count()
                value, begin = self._varint(begin, stop)
                if form == "int32s" and _MAX_INT32 <= value < _MAX_INT64 - _MAX_INT32:
                    raise _damaged(begin)
        if form in {"text", "domain"}:
            try:
                text = str(self.data[begin:stop], "utf-8")
            except UnicodeDecodeError:
                raise _damaged(begin) from None
            if form == "domain" and text.encode() not in _DOMAINS:
                raise _strange(f"an operator of {text[:64]!r}")

    def _fields(self, message: str, at: int, end: int) -> Iterator[tuple[int, _Field, int, int, int]]:
        """Fields of a message: number, field, value (0 for bytes), and where the value begins and ends."""
        known = _MESSAGES[message]
        while at < end:
            self._count()
            tag, begin = self._varint(at, end)
            if tag >= _MAX_TAG:
                raise _damaged(at)
            number, wire_type = tag >> 3, tag & 7
            field = known.get(number)
            if field is None:
                raise _strange(_REFUSED.get((message, number), f"field {number} in a {message}"))
            if wire_type != _WIRE_TYPE.get(field.form, 2):
                raise _damaged(at)
            value = 0
            if wire_type == 0:
                value, at = self._varint(begin, end)
            elif field.form == "float":
                at = begin + _FLOAT_BYTES
            else:
                size, begin = self._varint(begin, end)
                at = begin + size
            if at > end:
                raise _damaged(begin)
            yield number, field, value, begin, at

    def _count(self) -> None:
        self.fields += 1
        if self.fields > MAX_FIELDS:
            raise Refused(Reason.TOO_LARGE, f"it has more than {MAX_FIELDS} parts")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A value, and where it ends. Only the shortest form is accepted."""
        value = 0
        for i in range(_VARINT_BYTES):
            if at + i >= end:
                break
            byte = self.data[at + i]
            value |= (byte & ~_MORE) << (7 * i)
            if byte < _MORE:
                if (i and not byte) or value >= _MAX_INT64:
                    break
                return value, at + i + 1
        raise _damaged(at)


def _strange(words: str) -> Refused:
    return Refused(Reason.MALFORMED, f"it has {words}, which is never accepted from the network")


def _damaged(at: int) -> Refused:
    return Refused(Reason.MALFORMED, f"no ONNX model: byte {at} is invalid")
