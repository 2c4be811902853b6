"""Errors: as one line for people, and containment of internal errors that a peer's bytes cause."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import LichenError, Reason, Refused, Transient
from runtime.process.worker import WorkerFailed

log = structlog.get_logger(__name__)

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_WORDS: Final = ("no space left on device", "disk quota exceeded", "disk is full")
"""The words of the system, Python and SQLite in a worker's last line."""
_LINE: Final = 400
_FAULTS: Final = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError)


def no_room(error: Exception) -> bool:
    """Whether a disk is full."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    return any(words in str(error).lower() for words in _NO_ROOM_WORDS)


def in_words(error: LichenError | OSError) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and no_room(error):
        where = f" of {Path(error.filename).parent}" if isinstance(error.filename, str) else ""
        return f"the disk{where} is full"
    if isinstance(error, WorkerFailed) and (lines := error.detail.split("\n")):
        # A traceback says what happened in its last line; the log has all of it.
        last = next((line for line in reversed(lines) if line.strip()), "")
        head = str(error).removesuffix(error.detail).strip(" :\n")
        return _line(head if last.strip() in head else f"{head}: {last}")
    return _line(f"{type(error).__name__}: {error}")


def _line(text: str) -> str:
    return " ".join(text.split())[:_LINE]


@contextmanager
def contain_faults(where: str) -> Iterator[None]:
    """Turn an internal error of the wrapped code, which reads a peer's bytes, into a refusal, and log it.

    The error is ours, but must not stop the fleet.

    Raises:
        Refused: the code failed with an error that it does not declare.
        Transient: no memory. The memory for an update is bounded, so the peer is not to blame.
    """
    try:
        yield
    except MemoryError as error:
        raise Transient(f"{where}: out of memory") from error
    except _FAULTS as error:
        log.exception("fault_while_reading_a_peer", where=where)
        raise Refused(Reason.MALFORMED, f"{where} failed: {type(error).__name__}: {error}"[:500]) from error
