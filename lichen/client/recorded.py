"""Predictions from the file that an agent writes (``infer.output``), which it rotates to ``<name>.1``."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lichen.client.prediction import Prediction, parse


def read(path: str | Path) -> Iterator[Prediction]:
    """The predictions in the file now, the rotated file's first; other lines are left out.

    Raises:
        FileNotFoundError: there is no file.
    """
    path = Path(path)
    older = path.with_name(f"{path.name}.1")
    for file in [*([older] if older.exists() else []), path]:
        with file.open("rb") as lines:
            for line in lines:
                prediction = understood(line, str(path))
                if prediction is not None:
                    yield prediction


def understood(line: bytes, source: str) -> Prediction | None:
    """A line's prediction; None if it has none."""
    try:
        return parse(line, source)
    except ValueError:
        return None


class Tail:
    """New lines of a file, through its rotations; waits for a file that does not exist yet.

    Args:
        path: of the file. Its present content is skipped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = b""
        self._file = self._open()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def lines(self) -> Iterator[bytes]:
        """Whole new lines; a line that the agent is writing comes when it is complete."""
        if self._file is None:
            self._file = self._open()
        while self._file is not None:
            # Checked first: lines that are written between the two checks are read in the next round.
            rotated = self._is_rotated(self._file)
            *whole, self._part = (self._part + self._file.read()).split(b"\n")
            yield from whole
            if not rotated:
                return
            self._file.close()
            self._part, self._file = b"", self._open()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[bytes] | None:
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            return None

    def _is_rotated(self, file: IO[bytes]) -> bool:
        """Whether another file has the name now, or this one was emptied."""
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return True
        opened = os.fstat(file.fileno())
        return (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino) or opened.st_size < file.tell()
