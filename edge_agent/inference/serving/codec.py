"""Messages between agent and servant: one message = two lengths, a CBOR header, raw arrays.

No pickle. Every length, type and shape is checked before memory of that size is allocated: a servant runs
models from the network. Exactly one answer to each request.
"""

import functools
import math
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

import cbor2
import numpy as np
from numpy.typing import NDArray

from protocol.errors import Reason, Refused

MAX_HEADER: Final = 1024 * 1024
"""A task of a thousand labels has some 100 KB."""
MAX_BODY: Final = 256 * 1024 * 1024
KEPT: Final = 64 * 1024
"""A reader's buffer between two messages."""
_LENGTHS: Final = struct.Struct("<II")
_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "f4": np.dtype("<f4"),
    "i8": np.dtype("<i8"),
    "u1": np.dtype("u1"),
    "b1": np.dtype("?"),
}
_CODES: Final = {dtype: code for code, dtype in _TYPES.items()}
_MAX_ARRAYS: Final = 1024
_MAX_DIMS: Final = 8
_ARRAYS: Final = "arrays"
_KEPT_HEADS: Final = 32

Arrays = Mapping[str, NDArray[Any]]
Header = Mapping[str, Any]
_Array = tuple[str, np.dtype[Any], tuple[int, ...], int]


def encode(header: Header, arrays: Arrays) -> list[Any]:
    """One message, as buffers for ``sendmsg``; values of the header are hashable.

    Raises:
        Refused: it is larger than a reader accepts.
    """
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    said = tuple((name, _CODES[array.dtype], array.shape) for name, array in whole.items())
    head = _head(tuple(header.items()), said)
    size = sum(array.nbytes for array in whole.values())
    if len(head) > MAX_HEADER or size > MAX_BODY:
        raise Refused(Reason.TOO_LARGE, f"a message of {len(head)} + {size} bytes to a model's process")
    bodies = [array.data.cast("B") for array in whole.values() if array.nbytes]
    return [_LENGTHS.pack(len(head), size), head, *bodies]


@functools.lru_cache(_KEPT_HEADS)
def _head(items: tuple[tuple[str, Any], ...], said: tuple[Any, ...]) -> bytes:
    """Cached, because nearly all messages have the header of the one before."""
    return cbor2.dumps({**dict(items), _ARRAYS: said})


def lengths(data: bytes | bytearray | memoryview, max_body: int = MAX_BODY) -> int:
    """Bytes of a whole message, from its first eight.

    Raises:
        Refused: it would be too large.
    """
    head, body = _LENGTHS.unpack_from(data)
    if head > MAX_HEADER or body > max_body:
        raise Refused(Reason.TOO_LARGE, f"a message of {head} + {body} bytes, at most {max_body} are taken")
    return int(_LENGTHS.size + head + body)


def decode(data: memoryview) -> tuple[Header, dict[str, NDArray[Any]]]:
    """Header, and arrays that are views of the message.

    Args:
        data: a whole message.

    Raises:
        Refused: it is no valid message.
    """
    head, _ = _LENGTHS.unpack_from(data)
    at = _LENGTHS.size + head
    header, layout = _read(bytes(data[_LENGTHS.size : at]))
    arrays = {}
    for name, dtype, shape, size in layout:
        if at + size > len(data):
            raise _malformed("an array is longer than its message")
        arrays[name] = np.frombuffer(data[at : at + size], dtype).reshape(shape)
        at += size
    if at != len(data):
        raise _malformed("bytes belong to no array")
    return header, arrays


@functools.lru_cache(_KEPT_HEADS)
def _read(head: bytes) -> tuple[Header, tuple[_Array, ...]]:
    """A header, read-only; and of each array name, type, shape and bytes."""
    try:
        header = cbor2.loads(head)
        said = header.pop(_ARRAYS)
        if len(said) > _MAX_ARRAYS:
            raise _malformed(f"{len(said)} arrays")
        return header, tuple(_array(str(name), _TYPES[code], tuple(shape)) for name, code, shape in said)
    except (cbor2.CBORError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise _malformed(str(error)) from None


def _array(name: str, dtype: np.dtype[Any], shape: tuple[Any, ...]) -> _Array:
    if len(shape) > _MAX_DIMS or not all(type(n) is int and 0 <= n <= MAX_BODY for n in shape):
        raise ValueError(f"shape {shape!r}"[:100])
    return name, dtype, shape, dtype.itemsize * math.prod(shape)


def _malformed(words: str) -> Refused:
    return Refused(Reason.MALFORMED, f"invalid message of a model's process: {words}"[:300])


class MessageReader:
    """Messages from a blocking socket. A message is valid until the next is read."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(KEPT)

    def message(self) -> tuple[Header, dict[str, NDArray[Any]]] | None:
        """The next message; None if the other side has closed.

        Raises:
            Refused: the bytes are no message.
        """
        if len(self._buffer) > KEPT:
            self._buffer = bytearray(KEPT)
        got = self._sock.recv_into(self._buffer)
        while 0 < got < _LENGTHS.size:
            got += self._more(got)
        if not got:
            return None
        total = lengths(self._buffer)
        if total > len(self._buffer):
            larger = bytearray(total)
            larger[:got] = self._buffer[:got]
            self._buffer = larger
        while got < total:
            got += self._more(got)
        if got > total:
            raise Refused(Reason.MALFORMED, "two requests at once")
        return decode(memoryview(self._buffer)[:total])

    def _more(self, got: int) -> int:
        count = self._sock.recv_into(memoryview(self._buffer)[got:])
        if not count:
            raise ConnectionResetError("the other side has closed in the middle of a message")
        return count


def send(sock: socket.socket, header: Header, arrays: Arrays) -> None:
    """Send a message on a blocking socket."""
    buffers = encode(header, arrays)
    sent = sock.sendmsg(buffers)
    if sent < (total := sum(len(buffer) for buffer in buffers)):
        rest = memoryview(b"".join(buffers))
        while sent < total:
            sent += sock.send(rest[sent:])
