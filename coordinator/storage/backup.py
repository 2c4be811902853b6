"""A copy of each of the coordinator's databases beside it, replaced at the end of each round.

SQLite pages carry no checksum, so a copy of a damaged database would be damaged, too: each copy is checked
before it replaces the one before.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import JSON

from coordinator.storage import schema
from protocol.errors import Transient
from runtime.storage.files import disk_errors, put_in_place, remove
from runtime.storage.sqlite import open_reader, sorted_error

SUFFIX: Final = ".backup"
_DATABASE: Final = "coordinator."
"""Begin of the name of the database whose tables are checked; SQLite's own check suffices for the others."""
FREE_BYTES: Final = 4 * 1024 * 1024
"""A database up to this size is copied at the end of every round."""
BYTES_A_SECOND: Final = 128 * 1024
"""Bytes that backups of a larger database write on average, at most: 11 GB a day."""


def backup_of(database: Path) -> Path:
    """Path of the copy."""
    return database.with_name(database.name + SUFFIX)


def is_due(size: int, since_s: float) -> bool:
    """Whether a database is to be copied now: a large one not after every round. Pure.

    Args:
        size: of the database, bytes.
        since_s: seconds since the last copy.
    """
    return size <= FREE_BYTES or since_s >= size / BYTES_A_SECOND


def back_up(database: Path) -> None:
    """Copy a database beside itself, as of one moment; it may be in use.

    Raises:
        Transient: the disk is full, or the database is damaged (the old copy stays).
        Misconfigured: the folder is not writable.
    """
    copy_checked(database, backup_of(database))


def copy_checked(database: Path, copy: Path) -> None:
    """Copy a database to a file (0600), as of one moment; it may be in use.

    Raises:
        Transient: the disk is full, or the database is damaged (the old copy stays).
        Misconfigured: the folder is not writable.
    """
    part = copy.with_name(copy.name + ".part")
    with disk_errors(part):
        remove(part)
        try:
            part.touch(mode=0o600)
            _copy(database, part)
            if (found := trouble_in(part)) != "":
                raise Transient(f"{database}: no backup is made of a damaged database: {found}")
            put_in_place(part, copy)
        except sqlite3.Error as error:
            raise Transient(f"no backup could be made: {sorted_error(error, part)}") from None
        finally:
            remove(part)


def _copy(database: Path, part: Path) -> None:
    with (
        closing(open_reader(database)) as source,
        closing(sqlite3.connect(part)) as target,
    ):
        target.execute("PRAGMA synchronous=OFF")  # it is synced as a whole
        source.backup(target)  # in one step: one consistent moment


def trouble_in(file: Path) -> str:
    """Damage that SQLite finds in a file that is not written meanwhile; empty if there is none."""
    address = f"file:{quote(str(file))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            found = str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if found == "ok" and version >= schema.VERSION and file.name.startswith(_DATABASE):
                return unsound(database.execute)
    except sqlite3.Error as error:
        return str(error)
    return "" if found == "ok" else found


def unsound(rows: Callable[[str], Iterable[Sequence[Any]]]) -> str:
    """Damage in a database of this version, as text; empty if there is none.

    SQLite itself reads a flipped bit in the schema as another column name, and one in a JSON value as another
    text.

    Args:
        rows: runs a statement.
    """
    for table in schema.metadata.sorted_tables:
        missing = set(table.columns.keys()) - {row[1] for row in rows(f"PRAGMA table_info({table.name})")}
        if missing:
            return f"table {table.name} lacks {', '.join(sorted(missing))}"
        for column in table.columns:
            if isinstance(column.type, JSON):
                where = f"{column.name} IS NOT NULL AND NOT json_valid({column.name})"
                [broken] = rows(f"SELECT count(*) FROM {table.name} WHERE {where}")  # noqa: S608 - our own names
                if broken[0]:
                    return f"{broken[0]} values of {table.name}.{column.name} are no JSON"
    return ""
