"""Structured logs on stderr: JSON for machines, coloured lines for people at a terminal."""

import logging
import sys

import structlog

from runtime.settings import LogSettings


def configure(settings: LogSettings) -> None:
    """Set up structlog, and send what libraries log through the standard module the same way.

    Safe to call again: the last call wins.
    """
    level = getattr(logging, settings.level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
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
