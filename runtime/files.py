"""Small durable file operations."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured, Transient

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


def write_atomic(path: Path, data: bytes) -> None:
    """Write so that ``path`` holds either all of ``data`` or what it held before, also after a power cut.

    Raises:
        Transient: no space left; nothing changed.
        Misconfigured: the folder is not writable for us.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Sort the disk's errors.

    Raises:
        Misconfigured: it is closed to us, or a file stands where a folder should be.
        Transient: it is full, or what was there is gone; any other error is left as it is.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise Transient(f"{path}: no space left on the disk") from None
        if error.errno == errno.ENOENT:
            raise Transient(f"{path}: {error.strerror}") from None
        if error.errno in _IN_THE_WAY:
            raise Misconfigured(
                f"{path}: {error.strerror}: a part of this path is a file where a folder should be, or the "
                "other way round"
            ) from None
        if error.errno in _NOT_ALLOWED:
            raise Misconfigured(
                f"{path}: {error.strerror}; the service's user must own this folder"
            ) from None
        raise
