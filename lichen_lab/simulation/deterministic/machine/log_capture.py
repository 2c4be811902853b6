"""Captures the daemons' logs in a simulation: for the trace if there is one, else dropped."""

import contextlib
import logging
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

import structlog

from lichen_lab.simulation.deterministic.machine.process_life import LIFE

_SHOWN: Final = 300


@contextlib.contextmanager
def capture_logs(note: Callable[[str], None], *, talk: bool) -> Iterator[None]:
    """Take over structlog during a simulation.

    Args:
        note: writes a line into the trace.
        talk: hand it what is logged; else that is dropped as early as possible.
    """
    before = structlog.get_config()

    def write(_: object, level: str, event: MutableMapping[str, Any]) -> str:
        life = LIFE.get()
        who = "?" if life is None else f"{life.node}/{life.number}{'+' if life.dead else ''}"
        error = event.pop("exc_info", None)
        words = " ".join(f"{key}={value}" for key, value in event.items())
        note(f"{who} {level}: {words[:_SHOWN]}")
        if isinstance(error, BaseException):
            note(f"{who} {level}: {_where(error)}")
        raise structlog.DropEvent

    structlog.configure(
        processors=[write],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if talk else logging.CRITICAL),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def _where(error: BaseException) -> str:
    """The lines that an error came through, innermost last."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        lines.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return " > ".join(lines[-8:])
