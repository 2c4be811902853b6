"""A file of lines with bounded size."""

import contextlib
import os
from pathlib import Path
from typing import IO

import structlog

_log = structlog.get_logger(__name__)


class RotatingLines:
    """JSON lines in a file; at ``max_bytes`` it becomes ``<name>.1``, in place of the former ``.1``."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max = max_bytes
        self._file: IO[str] | None = None
        self._size = 0
        self.failures = 0

    def write(self, lines: list[str]) -> None:
        """Append lines; a disk error is counted, logged once, and the lines are written at the next call."""
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
                self._size = self._file.tell()
                if self._size and _is_torn(self._path):
                    self._file.write("\n")
            text = "".join(f"{line}\n" for line in lines)
            self._file.write(text)
            self._file.flush()
            self._size += len(text)
            if self._size >= self._max:
                self.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                _log.error("predictions_not_written", file=str(self._path), error=str(error))
            self.close()

    def close(self) -> None:
        """Close the file; lines that a full disk refused are dropped."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def _is_torn(path: Path) -> bool:
    """Whether a full disk, or a power cut, left half a line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
