"""The SQLite file of the window store: opening, moving a damaged file aside, limits of its size."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import LichenError
from protocol.frames.frame import digest
from protocol.tasks.task import Task
from runtime.storage.files import disk_errors, make_folder
from runtime.storage.sqlite import INDEX_BYTES, sorted_error, sqlite_errors
from runtime.storage.sqlite_writer import add_columns, closed_on_error, move_aside, open_writer

_log = structlog.get_logger(__name__)
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS windows (
  id INTEGER PRIMARY KEY, y INTEGER NOT NULL, present BLOB NOT NULL, quality BLOB NOT NULL, x BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_class ON windows (y, id);
CREATE TABLE IF NOT EXISTS dropped (y INTEGER PRIMARY KEY, n INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS given (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, window INTEGER NOT NULL, was INTEGER NOT NULL, at REAL NOT NULL,
  by TEXT NOT NULL);
"""
_ADDED_COLUMNS: Final = {"targets": "TEXT", "context": "BLOB", "start": "REAL"}
"""Labels of further targets, contexts, and the start of a window in stream seconds. A file of a release
without them gets the columns, and still works with that release."""
_SLACK_BYTES: Final = 1024 * 1024
_MIN_WAL_BYTES: Final = 256 * 1024
_MAX_WAL_BYTES: Final = 8 * 1024 * 1024
_PER_BYTE: Final = 2
_PER_ROW: Final = 4096
"""Cost of a window in the WAL: its pages, those of a window evicted for it, and those of the index."""
_WAIT_S: Final = 5.0


def grid_digest(task: Task) -> str:
    """Identifies the shape of a task's windows: the same grid and labels (and any context), the same store.

    Keys of the window with default values do not count: a release that adds one keeps devices' stores. The
    kind and size of a modality count for other kinds than streams, which all stores of older releases hold;
    of features of a backbone all that they depend on counts.
    """
    shape = {"name", "channels", "rate_hz", "unit"}
    other = {*shape, "kind", "height", "width"}
    parts = [m.model_dump(include=shape if m.kind == "stream" else other) for m in task.modalities]
    parts += [m.sensed.model_dump(exclude_defaults=True) for m in task.modalities if m.sensed is not None]
    window = task.window.model_dump(exclude={"context_s"}, exclude_defaults=True)
    return digest(repr((parts, window, task.labels)).encode())[:12]


def evict_above(budget_bytes: int) -> int:
    """Used pages, in bytes, above which windows are evicted although their values fit the budget.

    A page holds whole rows and an eviction leaves holes: the file is larger than its content.
    """
    return budget_bytes + budget_bytes // 4 + _SLACK_BYTES // 2


def values_within(disk_bytes: int, row_bytes: int) -> int:
    """The budget for values that keeps the file, WAL and index within a number of bytes on the disk.

    Args:
        disk_bytes: of all files of a store.
        row_bytes: of the largest window.
    """
    wal = _wal_bytes(disk_bytes)
    wal = max(wal, wal // 2 + _PER_BYTE * row_bytes + _PER_ROW)
    # The file: as evict_above, plus the window that is written before others are evicted for it.
    file = disk_bytes - wal - INDEX_BYTES - _SLACK_BYTES // 2 - 2 * row_bytes - _PER_ROW
    return max(row_bytes, file * 4 // 5)


def _wal_bytes(budget_bytes: int) -> int:
    """Maximal size of the WAL; one transaction may use half of it."""
    return min(_MAX_WAL_BYTES, max(_MIN_WAL_BYTES, budget_bytes // 8))


def rows_per_transaction(sizes: Iterable[int], budget_bytes: int) -> int:
    """How many windows of these sizes fit into one transaction; at least one.

    A transaction's pages stay in the WAL until its end, including those of the windows evicted in it.
    """
    room, count = _wal_bytes(budget_bytes) // 2, 0
    for size in sizes:
        room -= _PER_BYTE * size + _PER_ROW
        if room < 0 and count:
            break
        count += 1
    return count


def open_file(path: Path, budget_bytes: int) -> sqlite3.Connection:
    """Open the file; move a damaged one aside and create a new one.

    Raises:
        Transient: no room on the disk, or the file is locked; its content may be intact.
        Misconfigured: this user cannot write the folder or the file, or the disk is read-only.
    """
    with disk_errors(path.parent):
        make_folder(path.parent)
    with sqlite_errors(path, waited_s=_WAIT_S):
        try:
            return _open(path, budget_bytes)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            return replace_damaged(path, budget_bytes, error)


def sorted_for(path: Path, error: sqlite3.Error) -> LichenError:
    """The error of this package for an error of SQLite."""
    return sorted_error(error, path, waited_s=_WAIT_S)


def replace_damaged(path: Path, budget_bytes: int, error: Exception) -> sqlite3.Connection:
    """Move a damaged, closed file aside and start a new one. Removes the file that was moved aside before."""
    aside = move_aside(path, 1)
    _log.error("window_store_moved_aside", file=str(aside), error=str(error))
    return _open(path, budget_bytes)


def _open(path: Path, budget_bytes: int) -> sqlite3.Connection:
    wal = _wal_bytes(budget_bytes)
    db = open_writer(path, synchronous="NORMAL", wal_bytes=wal, isolation_level="DEFERRED", wait_s=_WAIT_S)
    with closed_on_error(db):
        page = int(db.execute("PRAGMA page_size").fetchone()[0])
        db.execute(f"PRAGMA wal_autocheckpoint = {wal // 2 // page}")
        # A hard limit besides the budget: freed pages are reused, so the file stays near its peak.
        db.execute(f"PRAGMA max_page_count = {(budget_bytes + budget_bytes // 2 + _SLACK_BYTES) // page}")
        db.executescript(_SCHEMA)
        add_columns(db, "windows", _ADDED_COLUMNS)
        db.execute("SELECT count(*), sum(length(x)) FROM windows").fetchone()
    return db
