"""Arrays that grow on disk, with a bounded part in memory: recordings are written once all rows are read."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_BUFFERED: Final = 64 << 20
"""Bytes of all arrays together in memory."""
BLOCK_ROWS: Final = 65_536


@dataclass
class SpooledArray:
    """One array: ``rows`` rows of ``width`` values (0: no second axis)."""

    dtype: np.dtype[Any]
    width: int
    file: Path
    rows: int = 0
    waiting: list[NDArray[Any]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return (self.rows, self.width) if self.width else (self.rows,)

    @property
    def bytes(self) -> int:
        """Of the whole array."""
        return self.rows * max(1, self.width) * self.dtype.itemsize

    def flush(self) -> None:
        """Append what waits to the file; it is open for no longer, so that there may be many."""
        if self.waiting:
            with self.file.open("ab") as file:
                for part in self.waiting:
                    file.write(part.tobytes())
            self.waiting.clear()

    def blocks(self, order: NDArray[np.int64] | None = None) -> Iterator[NDArray[Any]]:
        """The rows, a block at a time; ``order``: in that order."""
        self.flush()
        if not self.rows:
            return
        whole = np.memmap(self.file, self.dtype, "r", shape=self.shape)
        step = max(1, min(BLOCK_ROWS, MAX_BUFFERED // max(1, self.dtype.itemsize * self.width)))
        for begin in range(0, self.rows, step):
            at = slice(begin, begin + step) if order is None else order[begin : begin + step]
            yield np.asarray(whole[at])


class ArraySpool:
    """Arrays by key, in files of a folder.

    Args:
        folder: for the files; None: rows are counted and not stored.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._arrays: dict[tuple[str, ...], SpooledArray] = {}
        self._buffered = 0

    def append(self, key: tuple[str, ...], rows: NDArray[Any]) -> SpooledArray:
        """Append rows (n,) or (n, C) to the array of that key.

        Raises:
            ValueError: an earlier part had another type or number of columns.
            OSError: the disk refuses them.
        """
        width = rows.shape[1] if rows.ndim > 1 else 0
        found = self._arrays.get(key)
        if found is None:
            file = (self._folder or Path()) / f"{len(self._arrays)}.bin"
            found = self._arrays[key] = SpooledArray(rows.dtype, width, file)
        if (found.dtype, found.width) != (rows.dtype, width):
            raise ValueError(f"{key}: {rows.dtype} x {width} after {found.dtype} x {found.width}")
        found.rows += len(rows)
        if self._folder is not None:
            found.waiting.append(rows)
            self._buffered += rows.nbytes
            if self._buffered > MAX_BUFFERED:
                for one in self._arrays.values():
                    one.flush()
                self._buffered = 0
        return found

    def get(self, key: tuple[str, ...]) -> SpooledArray | None:
        """The array of that key; None: nothing was appended."""
        return self._arrays.get(key)
