"""Progress of an import on standard error: a line that is written again, in a terminal alone."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

_EVERY_S: Final = 0.25


@dataclass
class ProgressLine:
    """Counts bytes against a total.

    Args:
        total: bytes of all files.
        now: seconds.
    """

    total: int
    now: Callable[[], float] = monotonic
    done: int = 0
    files: int = 0
    _shown: float = field(default=-_EVERY_S)
    _wide: int = 0

    def __call__(self, count: int) -> None:
        """Add bytes that were read."""
        self.done += count
        if sys.stderr.isatty() and self.now() - self._shown >= _EVERY_S:
            self._shown = self.now()
            share = min(1.0, self.done / max(1, self.total))
            self._write(
                f"{share:4.0%}  {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB  {self.files} files"
            )

    def next_file(self) -> None:
        """One more file is read."""
        self.files += 1

    def clear(self) -> None:
        """Remove the line."""
        if self._wide:
            self._write("")
            sys.stderr.write("\r")

    def _write(self, words: str) -> None:
        sys.stderr.write(f"\r{words:{self._wide}}")
        sys.stderr.flush()
        self._wide = max(self._wide, len(words))
