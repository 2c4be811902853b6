"""SQLite files that a daemon writes: open, check, move a damaged one aside, change in transactions."""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from runtime.storage import sqlite
from runtime.storage.files import after_commit, before_commit

_STEP_S: Final = 0.02


def open_writer(
    file: Path,
    *,
    synchronous: Literal["FULL", "NORMAL"] = "FULL",
    wal_bytes: int | None = None,
    isolation_level: Literal["DEFERRED"] | None = None,
    wait_s: float | None = None,
) -> sqlite3.Connection:
    """Open or create a database in WAL mode, for threads that share the connection.

    With ``synchronous`` NORMAL a power cut loses the last commits, never the file. The write-ahead log is cut
    to ``wal_bytes``. ``wait_s`` is for other processes; None: ``sqlite.WAIT_S``.

    Raises:
        Transient: the disk is full.
        sqlite3.Error: for :func:`runtime.storage.sqlite.sqlite_errors`.
    """
    sqlite.require_index(file)
    limit_s = sqlite.WAIT_S if wait_s is None else wait_s
    db = sqlite3.connect(file, timeout=limit_s, isolation_level=isolation_level, check_same_thread=False)
    with closed_on_error(db):
        _enter_wal(db, limit_s)
        db.execute(f"PRAGMA synchronous={synchronous}")
        if wal_bytes is not None:
            db.execute(f"PRAGMA journal_size_limit={wal_bytes}")
    return db


def _enter_wal(db: sqlite3.Connection, wait_s: float) -> None:
    """SQLite does not wait for another process that opens the new file at the same moment; this does."""
    until = time.monotonic() + wait_s
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(_STEP_S)
        else:
            return


@contextmanager
def closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    """Close the connection if its preparation fails."""
    try:
        yield
    except BaseException:
        db.close()
        raise


def require_sound(db: sqlite3.Connection) -> None:
    """Check the pages of a database (``quick_check``).

    Raises:
        sqlite3.DatabaseError: it is damaged (``SQLITE_CORRUPT``).
    """
    finding = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    if finding != "ok":
        error = sqlite3.DatabaseError(" ".join(finding.split()))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def add_columns(db: sqlite3.Connection, table: str, columns: Mapping[str, str]) -> None:
    """Add the columns (name -> type) that a file of an older release lacks."""
    present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
    for name, kind in columns.items():
        if name not in present:
            db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")


def move_aside(file: Path, limit: int) -> Path:
    """Rename a closed database to ``<name>.corrupt-<n>``; from ``limit`` on it replaces the last one."""
    names = [file.with_name(f"{file.name}.corrupt-{n + 1}") for n in range(limit)]
    aside = next((name for name in names if not name.exists()), names[-1])
    for path in sqlite.beside(file):
        path.unlink(missing_ok=True)
    file.replace(aside)
    return aside


@contextmanager
def transaction(db: sqlite3.Connection, seam: Path | None = None) -> Iterator[None]:
    """Write all or nothing, on a connection without isolation level. ``seam``: the file of the commit."""
    db.execute("BEGIN IMMEDIATE")
    before = db.total_changes
    try:
        yield
        changed = seam if db.total_changes != before else None
        if changed is not None:
            before_commit(changed)
        db.execute("COMMIT")
        if changed is not None:
            after_commit(changed)
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def used_bytes(db: sqlite3.Connection) -> int:
    """Pages in use, in bytes; inside a transaction too."""
    pages, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
