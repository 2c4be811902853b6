"""Structured logs on stderr: JSON for machines, coloured lines for people at a terminal."""

import logging
import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import structlog

from runtime.settings.load import LogSettings

_WHOLE: Final = frozenset({"exc_info", "exception", "_record", "_from_structlog", "positional_args"})
"""What structlog passes on to itself."""
MOST_TEXT: Final = 2000
"""Characters of one value of a line; its ends stay."""
MOST_ITEMS: Final = 64
"""Entries of one list or map of a line."""


def bounded(value: Any) -> Any:
    """A value of a line of the log, cut: no line grows with the fleet, whoever writes it."""
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


def configure(settings: LogSettings) -> None:
    """Set up structlog, and send what libraries log through the standard module the same way.

    Safe to call again: the last call wins.
    """
    level = getattr(logging, settings.level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _bound,
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
    # Libraries are heard from warnings on; our own level applies to our own words.
    root.setLevel(max(level, logging.WARNING))
