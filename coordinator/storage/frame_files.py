"""Many frames in one file, written and synced at once; each can be found, and checked, without the database.

    file   = record, record, ...
    record = "LUPD", length of the frame (4 bytes, big-endian), its SHA-256 (32 bytes), the frame

A damaged record costs itself alone: :func:`scan` goes on at the next mark.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from protocol.frames.frame import digest

SUFFIX: Final = ".group"
_HEAD: Final = struct.Struct(">4sI32s")
_MARK: Final = b"LUPD"


def pack(frames: Sequence[tuple[str, bytes]]) -> tuple[bytes, list[int]]:
    """Concatenate frames.

    Args:
        frames: digest and bytes of each.

    Returns:
        The file's content, and where each frame begins in it.
    """
    parts: list[bytes] = []
    offsets: list[int] = []
    at = 0
    for name, frame in frames:
        head = _HEAD.pack(_MARK, len(frame), bytes.fromhex(name))
        offsets.append(at + len(head))
        parts += [head, frame]
        at += len(head) + len(frame)
    return b"".join(parts), offsets


def group_name(frames: Sequence[tuple[str, bytes]]) -> str:
    """The file's name, which depends on its frames, so that no group overwrites another's file."""
    return digest("".join(name for name, _ in frames).encode()) + SUFFIX


def scan(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Every undamaged frame of a file: its offset, its digest, its bytes."""
    at = data.find(_MARK)
    while at >= 0 and at + _HEAD.size <= len(data):
        _, length, mark = _HEAD.unpack_from(data, at)
        begin = at + _HEAD.size
        frame = data[begin : begin + length]
        whole = len(frame) == length and digest(frame) == mark.hex()
        if whole:
            yield begin, mark.hex(), frame
        at = data.find(_MARK, begin + length if whole else at + 1)
