"""Copy a coordinator's tables from PostgreSQL to the SQLite files of a folder, and back.

The files are those of a coordinator without ``storage.url``: one copy serves as a backup, and as the way from
either engine to the other.
"""

import re
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from coordinator.audit.tables import OPERATORS
from coordinator.privacy.noise_secret import FILE as NOISE_SECRET
from coordinator.recovery.rebuild import DUE
from coordinator.rollout.store import ROLLOUTS
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from coordinator.storage.engines.shared_tables import Design, SharedTables, Statements
from coordinator.storage.location import Location
from coordinator.storage.run_id import FILE as RUN_ID
from protocol.errors import Misconfigured
from runtime.storage.files import disk_errors, write_atomic

_AT_ONCE: Final = 1000
"""Rows that are held in memory."""
_MADE: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+)")

_FILES: Final = (RUN_ID, NOISE_SECRET)
"""On SQLite files of their own; on PostgreSQL rows of ``meta``."""


def copy_to_files(location: Location, folder: Path) -> None:
    """Write the tables on PostgreSQL as SQLite files into a folder, each schema as of one moment.

    Raises:
        Misconfigured: there are no tables, or the folder denies access.
        Transient: the disk is full, or the server cannot be reached.
    """
    target = Location(folder)
    _copy(location, target)
    with target.database(read_only=True) as store:
        found = {name: store.get_meta(name) for name in _FILES}
    for name, text in found.items():
        if text is not None:
            with disk_errors(folder / name):
                write_atomic(folder / name, text.encode())


def copy_from_files(folder: Path, location: Location) -> None:
    """Write the SQLite files of a folder into empty tables on PostgreSQL.

    The next start of the coordinator adds what blobs and frames prove since then.

    Raises:
        Misconfigured: the folder has no such files, the tables are not empty, or a coordinator runs on them.
        Transient: the server cannot be reached.
    """
    source = Location(folder)
    if not source.exists():
        raise Misconfigured(f"{source.where} is not there: name a state folder, or a copy of one")
    _copy(source, location)
    with disk_errors(folder), location.database() as store:
        values = {DUE: f"restored from {folder}"}
        for name in _FILES:
            if (folder / name).is_file():
                values[name] = (folder / name).read_text("ascii", errors="replace")
        store.put_meta(values)


def _copy(source: Location, target: Location) -> None:
    with source.database(read_only=True) as read, target.database() as written:
        _copy_own(read, written)
    for design in (IDENTITIES, ROLLOUTS, OPERATORS):
        with source.reader(design) as tables:
            if tables is not None:
                with closing(target.shared(design)) as shared:
                    _copy_shared(tables, shared, design)


def _copy_own(source: Database, target: Database) -> None:
    with source.snapshot() as read, target.transaction() as write:
        if write.execute(sa.select(sa.func.count()).select_from(schema.meta)).scalar_one():
            raise Misconfigured(
                f"{target.where}: there are tables of a coordinator already; name another schema "
                "(storage.schema_name), or drop this one"
            )
        for table in schema.metadata.sorted_tables:
            found = read.execute(sa.select(table).execution_options(yield_per=_AT_ONCE)).mappings()
            for part in found.partitions():
                write.execute(table.insert(), [dict(row) for row in part])
        target.engine.count_on(write)


def _copy_shared(source: Statements, target: SharedTables, design: Design) -> None:
    names = _MADE.findall("\n".join(design.schema))
    with target.change() as tables:
        for name in names:
            rows: list[Any] = source.execute(f"SELECT * FROM {name}").fetchall()  # noqa: S608 - our own names
            if rows:
                columns = list(rows[0].keys())
                marks = ", ".join("?" * len(columns))
                words = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - our own names
                tables.executemany(words, [tuple(row) for row in rows])
