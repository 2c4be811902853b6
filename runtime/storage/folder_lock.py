"""A lock of a folder, for one process or several that share it; the kernel releases it with its holder."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured
from runtime.storage.files import disk_errors

_PATIENCE_S: Final = 0.5
""":func:`is_locked` holds the lock for an instant; a stopping process, for a moment."""
_STEP_S: Final = 0.05


class FolderLock:
    """The lock; a child process that is started by exec does not inherit it.

    Args:
        path: the lock's file, in an existing folder. The file remains after the lock.
        who: for the message, such as ``agent``.
        shared: other processes may have it, too, if they also ask for it so.

    Raises:
        Misconfigured: another process has it, or we may not write the file.
        Transient: the disk is full.
    """

    def __init__(self, path: Path, who: str, *, shared: bool = False) -> None:
        self._handle = -1
        with disk_errors(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _PATIENCE_S
        while not _try_lock(self._handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            if time.monotonic() > until:
                self.close()
                raise Misconfigured(f"{path}: another {who} runs on this state_dir; stop it first")
            time.sleep(_STEP_S)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        """A daemon that failed during its construction holds no lock."""
        self.close()


def is_locked(path: Path) -> bool | None:
    """Whether a live process holds the lock, shared or not; None if we may not read it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError:  # no such file: no process ever had it
        return False
    try:
        # Another process that asks the same question has it for an instant.
        if _try_lock(handle, fcntl.LOCK_EX):
            return False
        time.sleep(_STEP_S)
        return not _try_lock(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def _try_lock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
