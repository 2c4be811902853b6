"""Small durable file operations, all through the seam of :mod:`runtime.disk`."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured, Transient
from runtime.disk import DISK

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM)


def write_atomic(path: Path, data: bytes) -> None:
    """Write so that ``path`` holds either all of ``data`` or what it held before, also after a power cut.

    Raises:
        Transient: no space left; nothing changed.
        Misconfigured: the folder is not writable for us.
    """
    with disk_errors(path):
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """As :func:`write_atomic`, with the disk's own errors: for a file that a command line names.

    Raises:
        OSError: it cannot be written; nothing changed.
    """
    disk = DISK.get()
    make_folder(path.parent)
    part = disk.temporary(path.parent)
    try:
        disk.write(part, data, sync=True, fresh=True)
        disk.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):  # what was wrong at first is said
            disk.unlink(part)
        raise
    disk.sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably: a file cannot survive the loss of its folder's name."""
    if folder.is_dir():
        return
    disk = DISK.get()
    try:
        disk.mkdir(folder)
    except FileNotFoundError:
        make_folder(folder.parent)
        disk.mkdir(folder)
    disk.sync_folder(folder.parent)


def write_in_place(path: Path, data: bytes) -> None:
    """Overwrite a file without a sync: for what can be lost, and is checked when it is read."""
    DISK.get().write(path, data, sync=False)


def write_at(path: Path, data: bytes, offset: int) -> None:
    """Write a part of a file without a sync: for what is verified as a whole later."""
    DISK.get().write_at(path, data, offset)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder; durable after :func:`sync_folder`."""
    DISK.get().replace(old, new)


def put_in_place(part: Path, path: Path) -> None:
    """Make a file that something else wrote durable, and then ``path``, as :func:`write_atomic` does."""
    disk = DISK.get()
    disk.sync(part)
    disk.replace(part, path)
    disk.sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there. A power cut soon after may bring it back.

    Raises:
        Misconfigured: the folder is not writable for us.
    """
    with disk_errors(path):
        DISK.get().unlink(path)


def sweep(folder: Path) -> None:
    """Remove what :func:`write_atomic` left when the power was cut; call it before ``folder`` is written."""
    for stray in folder.glob(".tmp-*"):
        with contextlib.suppress(OSError, Misconfigured, Transient):  # it only takes room
            remove(stray)


def remove_tree(folder: Path, *, ignore_errors: bool = True) -> None:
    """Remove a folder with all in it. A power cut may leave any part of it."""
    DISK.get().rmtree(folder, ignore_errors=ignore_errors)


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in ``folder`` durable."""
    DISK.get().sync_folder(folder)


def before_commit(path: Path) -> None:
    """Mark that a transaction of the SQLite file at ``path`` is about to become durable."""
    DISK.get().before_commit(path)


def after_commit(path: Path, *, synced: bool = True) -> None:
    """Mark that it is committed, and durable where the file has ``synchronous=FULL`` (``synced``)."""
    DISK.get().after_commit(path, synced=synced)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Sort the disk's errors.

    Raises:
        Misconfigured: it is closed to us or read-only, or a file stands where a folder should be.
        Transient: it is full or fails, or what was there is gone; any other error is left as it is.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise Transient(f"{path}: no space left on the disk") from None
        if error.errno == errno.ENOENT:
            raise Transient(f"{path}: {error.strerror}") from None
        if error.errno == errno.EIO:
            raise Transient(f"{path}: the disk fails ({error.strerror}); is it worn out?") from None
        if error.errno == errno.EROFS:
            raise Misconfigured(
                f"{path}: the disk is read-only, or has become so because it fails; see dmesg, repair and "
                "mount it, then start again"
            ) from None
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
