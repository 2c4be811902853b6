"""The last log lines of a process, in memory, within a bound of bytes: one more place that lines go to.

Secrets are removed by their form before a line is shortened: of a part, the form would not show.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from runtime.diagnosis.redaction import redacted
from runtime.logs import bounded
from runtime.text import one_line

MAX_BYTES: Final = 64 * 1024
MAX_TEXT: Final = 1000
"""Characters of a line."""
_LINE_BYTES: Final = 64
"""Of a line in memory, besides its text."""
_APART: Final = frozenset({"level", "timestamp", "event", "exception"})


@dataclass(frozen=True, slots=True)
class RecentLine:
    """A line: Unix seconds, level, and event with its values."""

    at: float
    level: str
    text: str

    @property
    def size(self) -> int:
        """Bytes that count."""
        return _LINE_BYTES + len(self.text.encode())


class RecentLines:
    """A processor of structlog that stores what it passes on; several threads may log.

    Args:
        limit_bytes: of all lines; the oldest are dropped.
        wall: Unix seconds.
    """

    def __init__(self, limit_bytes: int = MAX_BYTES, wall: Callable[[], float] = time.time) -> None:
        self._limit = limit_bytes
        self._wall = wall
        self._lock = threading.Lock()
        self._lines: deque[RecentLine] = deque()
        self._bytes = 0
        self.count = 0
        """All lines since the start."""

    def __call__(
        self, logger: Any, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """Store a line, and pass it on unchanged."""
        line = RecentLine(self._wall(), str(event.get("level", method)), _text(logger, method, event))
        with self._lock:
            self._lines.append(line)
            self._bytes += line.size
            self.count += 1
            while self._bytes > self._limit and self._lines:
                self._bytes -= self._lines.popleft().size
        return event

    def newest(self, limit_bytes: int, most: int) -> list[RecentLine]:
        """The newest lines, the oldest of them first, within so many bytes and lines."""
        with self._lock:
            lines = list(self._lines)
        found: list[RecentLine] = []
        for line in reversed(lines):
            limit_bytes -= line.size
            if limit_bytes < 0 or len(found) >= most:
                break
            found.append(line)
        return found[::-1]


def _text(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    found = structlog.processors.format_exc_info(logger, method, dict(event))
    words: Iterable[str] = (
        f"{key}={bounded(value)}"
        for key, value in found.items()
        if key not in _APART and not key.startswith("_") and key != "positional_args"
    )
    line = " ".join([str(found.get("event", "")), *words])
    trace = str(found.get("exception", ""))
    words_left = MAX_TEXT - min(len(line), MAX_TEXT // 2)
    return one_line(f"{redacted(line)} {redacted(trace)[-words_left:]}", MAX_TEXT) or "(empty)"
