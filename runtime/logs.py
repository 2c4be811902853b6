"""Structured logs on stderr: JSON for machines, coloured lines for people at a terminal."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import structlog

from runtime.pacing import TokenBucket
from runtime.settings.load import LogSettings

_WHOLE: Final = frozenset({"exc_info", "exception", "_record", "_from_structlog", "positional_args"})
"""Modules that structlog passes on to itself."""
MOST_TEXT: Final = 2000
"""Characters of one value; its two ends are kept."""
MOST_ITEMS: Final = 64
"""Entries of one list or map of a line."""
BURST: Final = 50.0
_PER_SECOND: Final = 0.2
"""One line every 5 s, 17,280 a day, about something that never ends."""


def bounded(value: Any) -> Any:
    """A shortened value of a log line: no line grows with the size of the fleet."""
    if isinstance(value, str) and len(value) > MOST_TEXT:
        half = MOST_TEXT // 2
        return f"{value[:half]} [{len(value) - 2 * half} characters left out] {value[-half:]}"
    if isinstance(value, Mapping):
        cut = {str(key)[:MOST_TEXT]: bounded(one) for key, one in islice(value.items(), MOST_ITEMS)}
        return cut if len(value) <= MOST_ITEMS else cut | {"left_out": len(value) - MOST_ITEMS}
    if isinstance(value, list | tuple | set | frozenset):
        kept = [bounded(one) for one in islice(value, MOST_ITEMS)]
        return kept if len(value) <= MOST_ITEMS else [*kept, f"and {len(value) - MOST_ITEMS} more"]
    return value


def _bound(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: value if key in _WHOLE else bounded(value) for key, value in event.items()}


def configure(settings: LogSettings, recent: structlog.typing.Processor | None = None) -> None:
    """Set up structlog, and send logs of libraries (standard module) the same way.

    Safe to call again: the last call counts.

    Args:
        settings: level and format.
        recent: also gets each line that is written.
    """
    level = getattr(logging, settings.level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _bound,
        *([] if recent is None else [recent]),
    ]
    pretty = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    last: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if pretty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries log from warnings on; the configured level is for our own lines.
    root.setLevel(max(level, logging.WARNING))


class LineRateLimiter:
    """Limits log lines about messages that anybody may send: a flood of messages must not flood the log.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._bucket = TokenBucket(BURST, _PER_SECOND)
        self._unsaid = 0

    def unsaid(self) -> dict[str, int] | None:
        """None to suppress the line, else a further key for it: how many lines were suppressed before it."""
        if not self._bucket.take(self._now()):
            self._unsaid += 1
            return None
        unsaid, self._unsaid = self._unsaid, 0
        return {"unsaid": unsaid} if unsaid else {}
