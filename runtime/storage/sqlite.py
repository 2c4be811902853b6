"""SQLite files: opening one for reading, room for its index, and the meaning of its errors.

Both daemons classify SQLite's errors here, so that the same trouble gives the same exit status and message.
"""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from protocol.errors import LichenError, Misconfigured, Transient
from runtime.clock import Clock
from runtime.storage.files import NOT_OURS, ROOM, ReadOnlyDisk, full, is_read_only

WAIT_S: Final = 10.0
"""Seconds to wait for another process that holds a database."""
LOOK_S: Final = 2.0
"""Seconds between two checks that the files are in their place."""
_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY: Final = 0xFF
"""SQLite's extended error codes keep the primary one in the low byte."""
INDEX_BYTES: Final = 32 * 1024
"""Bytes of a WAL's index (``-shm``)."""


def code_of(error: BaseException | None) -> int:
    """SQLite's primary error code; 0 if there is none."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite reports a damaged file."""
    return code_of(error) in _CORRUPT


def sorted_error(
    error: sqlite3.Error, file: Path, *, opening: bool = False, waited_s: float | None = None
) -> LichenError:
    """The error for an error of SQLite; its message names the file and its folder.

    Args:
        error: any, damage too.
        file: the database.
        opening: nothing was read or written yet: an unknown error is for the operator to solve.
        waited_s: the connection's time limit for other processes; None: :data:`WAIT_S`.

    Returns:
        Transient: the disk is full or fails, the folder is gone, or another process holds the database.
        ReadOnlyDisk: nothing can be written until somebody mounts the disk for writing.
        Misconfigured: no permission, a damaged file or, at the opening, any other error.
    """
    code, folder, patience_s = code_of(error), file.parent, WAIT_S if waited_s is None else waited_s
    if is_damage(error):
        return Misconfigured(f"{file}: the database is damaged: {error}")
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return Transient(
            f"{file}: another process holds the database for longer than {patience_s:g} s ({error}); find it "
            f"with: fuser -v {file}"
        )
    if no_room(error, folder):
        return full(file, folder)
    if not folder.is_dir():
        return gone(file)
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}:
        return _of_disk(error, file, code)
    return (Misconfigured if opening else Transient)(f"{file}: the database cannot be used: {error}")


def _of_disk(error: sqlite3.Error, file: Path, code: int) -> LichenError:
    if is_read_only(file.parent):
        return ReadOnlyDisk(file, str(error))
    files = [path for path in (file.parent, file, *beside(file)) if path.exists()]
    if not all(os.access(path, os.R_OK | os.W_OK) for path in files):
        return Misconfigured(f"{file}: {error}; {NOT_OURS}")
    if code == sqlite3.SQLITE_READONLY:
        return ReadOnlyDisk(file, str(error))
    if code == sqlite3.SQLITE_CANTOPEN:
        return Misconfigured(f"{file}: {error}; is it a file, and of a database?")
    return Transient(f"{file}: the disk of {file.parent} fails ({error}); is it worn out?")


@contextmanager
def sqlite_errors(file: Path, *, opening: bool = False, waited_s: float | None = None) -> Iterator[None]:
    """Classify SQLite's errors, except those that mean a damaged file, which are raised unchanged.

    Raises:
        Transient, Misconfigured: see :func:`sorted_error`.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if is_damage(error):
            raise
        raise sorted_error(error, file, opening=opening, waited_s=waited_s) from None


def gone(file: Path) -> Transient:
    """The error for a database that is not in its place any more."""
    return Transient(
        f"{file}: it is gone: {file.parent} was removed, or another disk is mounted there; what is written "
        "now would be lost"
    )


class Place:
    """The files of an open database, and whether its path still names them.

    If the folder is removed, or another disk is mounted over it, SQLite continues to write into its open
    files, which nobody will find again.

    Args:
        file: a database that is open in WAL mode.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._files = (file, beside(file)[0])
        self._known = [_identity(path) for path in self._files]

    def require(self) -> None:
        """Check once; two system calls.

        Raises:
            Transient: the file is gone, or another file has its name.
        """
        if [_identity(path) for path in self._files] != self._known:
            raise gone(self._file)


async def watch(require_there: Callable[[], None], clock: Clock) -> None:
    """Check every few seconds, without end, whether the files of a daemon are in their place.

    Args:
        require_there: :meth:`Place.require` of one of them.
        clock: of the pauses.

    Raises:
        Transient: they are not; the daemon ends with 75, and starts again with the files that are there then.
    """
    while True:
        await clock.sleep(LOOK_S)
        await asyncio.to_thread(require_there)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - Path.stat costs four times as much, and every commit calls this
    except OSError:
        return None
    return found.st_dev, found.st_ino


def beside(file: Path) -> tuple[Path, Path]:
    """The WAL of a database, and the WAL's index."""
    return file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")


def no_room(error: sqlite3.Error, folder: Path) -> bool:
    """Whether the disk is full. If its index does not fit, SQLite reports an I/O error instead."""
    code = code_of(error)
    if code == sqlite3.SQLITE_FULL:
        return True
    try:
        free = shutil.disk_usage(folder).free
    except OSError:  # the folder is gone
        return False
    return (
        code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN} and free < ROOM and not is_read_only(folder)
    )


def require_index(file: Path) -> None:
    """Make sure that SQLite will find room for the WAL's index, before it opens a database.

    SQLite maps the index into memory and first writes one byte of each page. If a block of the file system is
    smaller than a page (ext4 below 512 MB has blocks of 1 KiB), the rest of the page is a hole, and on a full
    disk the first write to it ends the process by SIGBUS.

    Raises:
        Transient: the disk is full.
    """
    if not _index_fits(file):
        raise full(file, file.parent)


def _index_fits(file: Path) -> bool:
    index = beside(file)[1]
    try:
        found = index.stat()
        if found.st_size >= INDEX_BYTES and found.st_blocks * 512 >= found.st_size:  # no hole in it
            return True
    except OSError:
        pass
    try:
        return shutil.disk_usage(file.parent).free >= ROOM
    except OSError:  # the folder is gone: the open reports it
        return True


def open_reader(file: Path) -> sqlite3.Connection:
    """Open a database for reading beside the daemon that writes it, or after it has ended.

    If the disk has no room for an index (full, read-only), a database that was closed in order is read
    without one.

    Raises:
        Transient: it is gone, or the disk is full and its last changes need an index.
        sqlite3.Error: for :func:`sqlite_errors`; most of them come with the first statement.
    """
    if not file.is_file():
        raise gone(file)
    wal, index = beside(file)
    closed_in_order = not wal.exists() or wal.stat().st_size == 0
    closed_to_all = not index.exists() and is_read_only(file.parent)
    bare = closed_to_all or not _index_fits(file)
    if bare and not closed_in_order:
        why = "its last changes cannot be read"
        raise ReadOnlyDisk(file, why) if closed_to_all else full(file, file.parent)
    how = "mode=ro&immutable=1" if bare else "mode=ro"
    address = f"file:{quote(str(file))}?{how}"
    return sqlite3.connect(address, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
