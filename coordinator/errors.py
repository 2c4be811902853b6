"""Errors in one line for people: a full disk by its folder, a worker's failure without its traceback."""

import errno
from pathlib import Path
from typing import Final

from protocol.errors import LichenError
from runtime.process.worker import WorkerFailed

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_WORDS: Final = ("no space left on device", "disk quota exceeded", "disk is full")
"""As the system, Python and SQLite say it in a worker's last words."""
_LINE: Final = 400


def no_room(error: Exception) -> bool:
    """Whether a disk is full."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    return any(words in str(error).lower() for words in _NO_ROOM_WORDS)


def in_words(error: LichenError | OSError) -> str:
    """What went wrong, in one line."""
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
