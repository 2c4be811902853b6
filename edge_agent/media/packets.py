"""Packets from the reading process to the agent: one frame or block of samples each, with its time. Pure.

A packet is a header of 32 bytes and a payload. The receiver never holds more than one packet and one read.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_HEADER: Final = struct.Struct("<4sB3xI4xqQ")
"""Magic, kind, bytes of the payload, time, frames dropped so far."""
_MAGIC: Final = b"LMP1"
HEADER_BYTES: Final = _HEADER.size
MAX_WORDS_BYTES: Final = 2048
"""Of a packet that has words."""


class BadStream(ValueError):  # noqa: N818 - named after its cause, as in protocol.errors
    """The bytes are no packets; the message says how."""


class PacketKind(IntEnum):
    """What a packet holds."""

    MEDIA = 1
    """A frame, or samples."""
    STARTED = 2
    """The pipeline runs; the payload says how, in words."""
    WARNING = 3
    """Something was lost, for example a frame that could not be decoded; words."""
    FAILED = 4
    """The reader ends; the payload is a code, a line feed and words."""
    ENDED = 5
    """The pipeline has no more data."""


@dataclass(frozen=True, slots=True)
class MediaPacket:
    """One packet.

    Attributes:
        kind: what it holds.
        time_ns: of a frame, or of the first sample, by CLOCK_MONOTONIC.
        dropped: frames or blocks that the reader dropped since its start, because nobody read them.
        payload: bytes.
    """

    kind: PacketKind
    time_ns: int
    dropped: int
    payload: bytes

    @property
    def words(self) -> str:
        """The payload as text, without control characters."""
        text = self.payload.decode(errors="replace")
        return "".join(c for c in text if c.isprintable() or c == "\n")


def header(kind: PacketKind, size: int, time_ns: int = 0, dropped: int = 0) -> bytes:
    """The header of a packet with a payload of ``size`` bytes."""
    return _HEADER.pack(_MAGIC, kind, size, time_ns, dropped)


def words_packet(kind: PacketKind, words: str) -> bytes:
    """A whole packet of words, cut to the limit."""
    payload = words.encode(errors="replace")[:MAX_WORDS_BYTES]
    return header(kind, len(payload)) + payload


class PacketReader:
    """Joins blocks of bytes to packets, in bounded memory.

    Args:
        max_media_bytes: the largest payload of a frame or block of samples.
    """

    def __init__(self, max_media_bytes: int) -> None:
        self._limits = dict.fromkeys(PacketKind, MAX_WORDS_BYTES) | {PacketKind.MEDIA: max_media_bytes}
        self._waiting = bytearray()

    def feed(self, block: bytes) -> Iterator[MediaPacket]:
        """The packets that are complete with ``block``.

        Raises:
            BadStream: the bytes are no packet, or one beyond the limit; the stream cannot be read on.
        """
        self._waiting += block
        while len(self._waiting) >= HEADER_BYTES:
            magic, number, size, time_ns, dropped = _HEADER.unpack_from(self._waiting)
            if magic != _MAGIC or number not in self._limits:
                raise BadStream("bytes that are no packet")
            kind = PacketKind(number)
            if size > self._limits[kind]:
                raise BadStream(f"a packet of {size} bytes; the limit is {self._limits[kind]}")
            if time_ns < 0:
                raise BadStream("a packet with a negative time")
            if len(self._waiting) < HEADER_BYTES + size:
                return
            payload = bytes(self._waiting[HEADER_BYTES : HEADER_BYTES + size])
            del self._waiting[: HEADER_BYTES + size]
            yield MediaPacket(kind, time_ns, dropped, payload)
