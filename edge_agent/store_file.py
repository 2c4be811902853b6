"""The SQLite file under the window store: open it, move a damaged one aside, know its size."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from protocol.errors import LichenError
from runtime.databases import require_index, sorted_error, sqlite_errors
from runtime.files import disk_errors

_log = structlog.get_logger("edge_agent.store")
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS windows (
  id INTEGER PRIMARY KEY, y INTEGER NOT NULL, present BLOB NOT NULL, quality BLOB NOT NULL, x BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS by_class ON windows (y, id);
CREATE TABLE IF NOT EXISTS dropped (y INTEGER PRIMARY KEY, n INTEGER NOT NULL);
"""
_LATER: Final = {"targets": "TEXT", "context": "BLOB"}
"""Labels of further targets, and what came before the window. A file of a release that knew none of it gets
the columns, and still serves that release."""
_SLACK_BYTES: Final = 1024 * 1024
_WAIT_S: Final = 5.0


def evict_above(budget_bytes: int) -> int:
    """Pages in use, in bytes, above which windows go although their values fit the budget.

    A page holds whole rows and an eviction leaves holes: the file is larger than what is in it.
    """
    return budget_bytes + budget_bytes // 4 + _SLACK_BYTES // 2


def used_bytes(db: sqlite3.Connection) -> int:
    """Pages in use, in bytes; inside a transaction too."""
    pages, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def open_file(path: Path, budget_bytes: int) -> sqlite3.Connection:
    """Open the file; a damaged one is moved aside and a new one made.

    Raises:
        Transient: no room on the disk, or the file is locked; what is there may be fine.
        Misconfigured: the folder or the file is not writable for us, or the disk is read-only.
    """
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite_errors(path, waited_s=_WAIT_S):
        try:
            return _open(path, budget_bytes)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            return begin_anew(path, budget_bytes, error)


def sorted_for(path: Path, error: sqlite3.Error) -> LichenError:
    """What an error of the file means."""
    return sorted_error(error, path, waited_s=_WAIT_S)


def begin_anew(path: Path, budget_bytes: int, error: Exception) -> sqlite3.Connection:
    """Move a damaged file (closed before) aside and begin a new one. The one moved before it goes."""
    aside = path.with_name(f"{path.name}.corrupt-1")
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    _log.error("the window store was corrupt; it was moved aside", file=str(aside), error=str(error))
    return _open(path, budget_bytes)


@contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError:
        db.close()
        raise


def _open(path: Path, budget_bytes: int) -> sqlite3.Connection:
    require_index(path)
    db = sqlite3.connect(path, check_same_thread=False, timeout=_WAIT_S)
    with _closed_on_error(db):
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # a power cut loses the last commits, never the file
        db.execute("PRAGMA journal_size_limit = 4194304")
        page = int(db.execute("PRAGMA page_size").fetchone()[0])
        # A hard stop beside the budget: freed pages are used again, so the file stays near its peak.
        db.execute(f"PRAGMA max_page_count = {(budget_bytes + budget_bytes // 2 + _SLACK_BYTES) // page}")
        db.executescript(_SCHEMA)
        here = {row[1] for row in db.execute("PRAGMA table_info(windows)")}
        for name in _LATER.keys() - here:
            db.execute(f"ALTER TABLE windows ADD COLUMN {name} {_LATER[name]}")
        db.execute("SELECT count(*), sum(length(x)) FROM windows").fetchone()
    return db
