"""Small durable file operations, all through :mod:`runtime.storage.disk`."""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured, Transient
from runtime.storage.disk import DISK, TEMPORARY

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM)
ROOM: Final = 128 * 1024
"""Bytes that a transaction of SQLite and its index need at least."""
_BEING_WRITTEN_S: Final = 60.0
NOT_OURS: Final = "the service's user must own this folder"


class ReadOnlyDisk(Transient, Misconfigured):
    """The disk is read-only. A running daemon continues, as with a full disk; at its start it ends with 78.

    Args:
        path: the file that could not be written.
        error: the system's message.
    """

    def __init__(self, path: Path, error: str) -> None:
        super().__init__(
            f"{path}: the disk of {path.parent} is read-only, or has become so because it fails ({error}); "
            "see dmesg, repair it and mount it for writing"
        )


def write_atomic(path: Path, data: bytes) -> None:
    """Write so that ``path`` holds either all of ``data`` or its old content, also after a power cut.

    Raises:
        Transient: no space left; nothing changed.
        Misconfigured: we may not write the folder.
    """
    with disk_errors(path):
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """As :func:`write_atomic`, but with the disk's own errors: for a file that a command line names.

    Raises:
        OSError: it cannot be written; nothing changed.
    """
    _replace(path, data, sync=True)
    DISK.get().sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably: a file cannot survive the loss of its folder's name."""
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
    """Overwrite a file without a sync: for data that can be lost and is checked when it is read."""
    DISK.get().write(path, data, sync=False)


def write_unsynced(path: Path, data: bytes) -> None:
    """Write so that readers see all of ``data`` or the old content; a power cut may tear or lose it."""
    _replace(path, data, sync=False)


def _replace(path: Path, data: bytes, *, sync: bool) -> None:
    make_folder(path.parent)
    disk = DISK.get()
    part = disk.temporary(path.parent)
    try:
        disk.write(part, data, sync=sync, fresh=True)
        disk.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is raised
            disk.unlink(part)
        raise


def write_at(path: Path, data: bytes, offset: int) -> None:
    """Write a part of a file without a sync: for data that is verified as a whole later."""
    DISK.get().write_at(path, data, offset)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder; durable after :func:`sync_folder`."""
    DISK.get().replace(old, new)


def link_or_copy(old: Path, new: Path) -> None:
    """Give a file that nobody changes any more a second name, durably; on a disk without links, copy it.

    Raises:
        OSError: there is no such file, or no space.
    """
    make_folder(new.parent)
    disk = DISK.get()
    part = disk.temporary(new.parent)
    try:
        disk.link(old, part)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        replace_file(new, old.read_bytes())
        return
    try:
        disk.replace(part, new)
    finally:
        disk.unlink(part)  # it stays if both were names of one file already
    disk.sync_folder(new.parent)


def put_in_place(part: Path, path: Path) -> None:
    """Make another program's file durable, and then rename it to ``path``, as :func:`write_atomic` does."""
    disk = DISK.get()
    disk.sync(part)
    disk.replace(part, path)
    disk.sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file, if it exists. A power cut soon after may bring it back.

    Raises:
        Misconfigured: we may not write the folder.
    """
    with disk_errors(path):
        DISK.get().unlink(path)


def disk_trouble(folder: Path) -> str:
    """Why nobody can write below a folder now, in words; empty if no reason is known."""
    if not folder.is_dir():
        return f"{folder} is gone"
    if is_read_only(folder):
        return f"the disk of {folder} is read-only, or has become so because it fails"
    try:
        return f"the disk of {folder} is full" if shutil.disk_usage(folder).free < ROOM else ""
    except OSError as error:
        return f"the disk of {folder} fails: {error.strerror}"


def sweep(folder: Path) -> None:
    """Remove temporary files that :func:`write_atomic` left at a power cut; before ``folder`` is written."""
    for stray in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError, Misconfigured, Transient):  # it only takes up space
            remove(stray)


def sweep_below(folder: Path) -> None:
    """:func:`sweep` of a daemon's state folder and of each folder in it, at its start.

    Files younger than a minute stay until the next start: a command may be writing them.
    """
    now = time.time()
    for stray in (*folder.glob(f"{TEMPORARY}*"), *folder.glob(f"*/{TEMPORARY}*")):
        with contextlib.suppress(OSError, Misconfigured, Transient):
            if abs(now - stray.stat().st_mtime) > _BEING_WRITTEN_S:
                remove(stray)


def remove_tree(folder: Path, *, ignore_errors: bool = True) -> None:
    """Remove a folder with its content. A power cut may leave any part of it."""
    DISK.get().rmtree(folder, ignore_errors=ignore_errors)


def sync_folder(folder: Path) -> None:
    """Make a rename or removal in ``folder`` durable."""
    DISK.get().sync_folder(folder)


def before_commit(path: Path) -> None:
    """Mark that a transaction of the SQLite file at ``path`` is about to become durable."""
    DISK.get().before_commit(path)


def after_commit(path: Path, *, synced: bool = True) -> None:
    """Mark that it is committed, and durable if the file has ``synchronous=FULL`` (``synced``)."""
    DISK.get().after_commit(path, synced=synced)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Classify the disk's errors.

    Raises:
        Misconfigured: no permission, or a file is where a folder should be.
        ReadOnlyDisk: the disk is read-only.
        Transient: the disk is full or fails, or the file is gone; any other error is raised unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise full(path, path if path.is_dir() else path.parent) from None
        if error.errno == errno.ENOENT:
            raise Transient(f"{path}: {error.strerror}") from None
        if error.errno == errno.EIO:
            raise Transient(f"{path}: the disk fails ({error.strerror}); is it worn out?") from None
        if error.errno == errno.EROFS:
            raise ReadOnlyDisk(path, str(error.strerror)) from None
        if error.errno in _IN_THE_WAY:
            raise Misconfigured(
                f"{path}: {error.strerror}: a part of this path is a file where a folder should be, or the "
                "other way round"
            ) from None
        if error.errno in _NOT_ALLOWED:
            raise Misconfigured(f"{path}: {error.strerror}; {NOT_OURS}") from None
        raise


def full(path: Path, folder: Path) -> Transient:
    """The error for a ``path`` that could not be written for lack of space."""
    return Transient(f"{path}: the disk of {folder} is full")


def is_read_only(folder: Path) -> bool:
    """Whether the disk of a folder is read-only for everybody."""
    try:
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            return True
        # An ext4 that failed does not report it there: try to create a file without a name.
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return error.errno == errno.EROFS
    return False
