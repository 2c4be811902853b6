"""A round's tensors on disk, for folds over all updates at once; only an index is in memory.

The file has no name, so its space is freed with the process. Updates are read in the order of their digests,
not of their arrival, so results do not depend on it.
"""

import hashlib
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from models.contract import FloatArray
from protocol.errors import Transient

_FOLDER: Final[ContextVar[Path | None]] = ContextVar("spill_folder", default=None)
_ITEM: Final = 4
"""Bytes of a float32."""


@contextmanager
def spilling_into(folder: Path | None) -> Iterator[None]:
    """Create spill files of this context in the folder; None: in ``TMPDIR``."""
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


@dataclass(frozen=True, slots=True)
class _Piece:
    key: bytes
    offset: int
    elements: int


class Spill:
    """Named float32 arrays of many updates.

    Raises:
        Transient: the disk is full or cannot be written.
    """

    def __init__(self) -> None:
        self._fd = _nameless()
        self._end = 0
        self._pieces: dict[str, list[_Piece]] = {}
        self._sorted: dict[str, list[_Piece]] = {}
        weakref.finalize(self, os.close, self._fd)

    def add(self, name: str, values: FloatArray) -> None:
        """Store an array."""
        # -0.0 and 0.0 are equal numbers with different bytes, which must not affect the order
        data = (np.ascontiguousarray(values, np.float32) + np.float32(0)).tobytes()
        key = hashlib.blake2b(data, digest_size=16, person=b"lichen").digest()
        piece = _Piece(key, self._write(data), len(data) // _ITEM)
        self._pieces.setdefault(name, []).append(piece)
        self._sorted.pop(name, None)

    def _write(self, data: bytes) -> int:
        offset, view = self._end, memoryview(data)
        while view:
            try:
                written = os.pwrite(self._fd, view, self._end)
            except OSError as error:
                raise Transient(f"a robust fold keeps its updates on disk: {error.strerror}") from error
            self._end += written
            view = view[written:]
        return offset

    def count(self, name: str) -> int:
        """Number of arrays of that name."""
        return len(self._pieces.get(name, ()))

    def slab(self, name: str, start: int, stop: int) -> FloatArray:
        """Elements ``[start, stop)`` of every array of that name, ``x_NV``, in canonical order."""
        pieces = self._ordered(name)
        out_NV = np.empty((len(pieces), stop - start), np.float32)
        for row_V, piece in zip(out_NV, pieces, strict=True):
            row_V[:] = self._read(piece.offset + _ITEM * start, stop - start)
        return out_NV

    def arrays(self, name: str) -> Iterator[FloatArray]:
        """Every array of that name, flat, in the order of storing."""
        for piece in self._pieces.get(name, ()):
            yield self._read(piece.offset, piece.elements)

    def canonical(self, name: str) -> Iterator[FloatArray]:
        """Every array of that name, flat, in canonical order."""
        for piece in self._ordered(name):
            yield self._read(piece.offset, piece.elements)

    def _ordered(self, name: str) -> list[_Piece]:
        if name not in self._sorted:
            self._sorted[name] = sorted(self._pieces.get(name, ()), key=lambda piece: piece.key)
        return self._sorted[name]

    def _read(self, offset: int, elements: int) -> FloatArray:
        data = os.pread(self._fd, _ITEM * elements, offset)
        if len(data) != _ITEM * elements:
            raise Transient("a robust fold's file on disk is shorter than what was written to it")
        return np.frombuffer(data, np.float32)

    def merge(self, other: Self) -> None:
        """Add another spill's arrays."""
        for name in other._pieces:
            for values in other.arrays(name):
                self.add(name, values)


def _nameless() -> int:
    """Open a file without a name, which ends when it is closed."""
    try:
        handle, path = tempfile.mkstemp(prefix=".fold-", dir=_FOLDER.get())
        Path(path).unlink()
    except OSError as error:
        raise Transient(f"a robust fold keeps its updates on disk: {error}") from error
    return handle
