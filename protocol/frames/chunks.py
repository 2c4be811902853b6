"""Splits a blob into chunks and tracks which have arrived (docs/protocol/README.md).

A chunk is named by (digest of the blob, index), so order and duplicates do not matter. Chunk
``index`` holds bytes ``[index * chunk_bytes, (index + 1) * chunk_bytes)``; only the last may be shorter.
"""

from typing import Self

import numpy as np

from protocol.errors import Reason, Refused
from protocol.messages import MAX_BLOB_BYTES, MAX_CHUNKS


def chunk_count(size: int, chunk_bytes: int) -> int:
    """Number of chunks of ``size`` bytes; 0 for an empty blob.

    Raises:
        ValueError: ``size`` is negative, or ``chunk_bytes`` is below 1.
    """
    if size < 0 or chunk_bytes < 1:
        raise ValueError(f"no chunks of {chunk_bytes} bytes in a blob of {size}")
    return -(-size // chunk_bytes)


def chunk_at(data: bytes, index: int, chunk_bytes: int) -> bytes:
    """Chunk ``index`` of a blob.

    Raises:
        IndexError: the blob has no such chunk.
    """
    count = chunk_count(len(data), chunk_bytes)
    if not 0 <= index < count:
        raise IndexError(f"chunk {index} of a blob of {count} chunks")
    return data[index * chunk_bytes : (index + 1) * chunk_bytes]


class Assembly:
    """Which chunks of one blob have arrived: a bitmap, not the bytes.

    Args:
        size: of the blob, bytes.
        chunk_bytes: of every chunk but the last.

    Raises:
        Refused: the blob is larger than ``MAX_BLOB_BYTES`` or would have more than ``MAX_CHUNKS`` chunks.
        ValueError: as :func:`chunk_count`.
    """

    def __init__(self, size: int, chunk_bytes: int) -> None:
        self.size = size
        self.chunk_bytes = chunk_bytes
        self.count = chunk_count(size, chunk_bytes)
        if size > MAX_BLOB_BYTES or self.count > MAX_CHUNKS:
            raise Refused(
                Reason.TOO_LARGE,
                f"blob of {size} bytes in {self.count} chunks, at most {MAX_BLOB_BYTES} in {MAX_CHUNKS}",
            )
        self._bits = bytearray(-(-self.count // 8))
        self._here = 0

    @classmethod
    def from_bytes(cls, size: int, chunk_bytes: int, bitmap: bytes) -> Self:
        """Resume from a stored bitmap.

        Raises:
            Refused: the bitmap does not belong to a blob of that size; start anew.
        """
        assembly = cls(size, chunk_bytes)
        bits = int.from_bytes(bitmap, "little")
        if len(bitmap) != len(assembly._bits) or bits >> assembly.count:
            raise Refused(
                Reason.MALFORMED, f"a bitmap of {len(bitmap)} bytes does not fit {assembly.count} chunks"
            )
        assembly._bits[:] = bitmap
        assembly._here = bits.bit_count()
        return assembly

    def to_bytes(self) -> bytes:
        """The bitmap: chunk i is bit i % 8 (lowest first) of byte i // 8."""
        return bytes(self._bits)

    def length_of(self, index: int) -> int:
        """Bytes of chunk ``index``.

        Raises:
            Refused: the blob has no such chunk.
        """
        if not 0 <= index < self.count:
            raise Refused(Reason.MALFORMED, f"chunk {index} of a blob of {self.count} chunks")
        return min(self.chunk_bytes, self.size - index * self.chunk_bytes)

    def has(self, index: int) -> bool:
        """Whether chunk ``index`` has arrived."""
        return 0 <= index < self.count and bool(self._bits[index >> 3] & 1 << (index & 7))

    def add(self, index: int, length: int) -> bool:
        """Note that a chunk of ``length`` bytes has arrived.

        Returns:
            False if it had arrived before.

        Raises:
            Refused: the blob has no such chunk, or the chunk has another length.
        """
        expected = self.length_of(index)
        if length != expected:
            raise Refused(Reason.MALFORMED, f"chunk {index} has {length} bytes and should have {expected}")
        if self.has(index):
            return False
        self._bits[index >> 3] |= 1 << (index & 7)
        self._here += 1
        return True

    @property
    def here(self) -> int:
        """Number of chunks that have arrived."""
        return self._here

    @property
    def complete(self) -> bool:
        """Whether all chunks have arrived."""
        return self._here == self.count

    def missing(self, limit: int = 64) -> tuple[tuple[int, int], ...]:
        """The first ``limit`` ranges [first, last] of missing chunks, in order."""
        arrived = np.unpackbits(
            np.frombuffer(bytes(self._bits), np.uint8), count=self.count, bitorder="little"
        )
        edges = np.flatnonzero(np.diff(arrived, prepend=1, append=1)).reshape(-1, 2)[:limit]
        return tuple((int(first), int(last) - 1) for first, last in edges)
