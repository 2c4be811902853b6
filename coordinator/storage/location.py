"""Where a coordinator's tables are: SQLite files of its state folder, or schemas of a PostgreSQL database.

The folder always holds what belongs to one machine: keys, jobs, the broker's files.
"""

import sqlite3
from collections.abc import Hashable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.storage.database import Database
from coordinator.storage.engines.base import Fence
from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.engines.shared_sqlite import SharedSqlite
from coordinator.storage.engines.shared_tables import Design, SharedFence, SharedTables, Statements
from runtime.storage.sqlite import open_reader, sqlite_errors

DATABASE: Final = "coordinator.sqlite3"


@dataclass(frozen=True, slots=True)
class Location:
    """The place of all tables of one coordinator.

    Attributes:
        state_dir: the state folder.
        schema: on PostgreSQL; None: SQLite files in the folder.
    """

    state_dir: Path
    schema: PostgresSchema | None = None

    @classmethod
    def at(cls, where: "Location | Path") -> "Location":
        """A folder stands for the SQLite files in it."""
        return where if isinstance(where, Location) else cls(where)

    @property
    def place(self) -> Path | PostgresSchema:
        """The place of the coordinator's own tables."""
        return self.schema or self.state_dir / DATABASE

    @property
    def where(self) -> str:
        """The same for messages, without secrets."""
        return str(self.place) if self.schema is None else self.schema.where

    def database(
        self, *, read_only: bool = False, alone: bool = True, fence: Fence | None = None
    ) -> Database:
        """Open the coordinator's own tables; see :class:`Database`."""
        return Database(self.place, read_only=read_only, alone=alone, fence=fence)

    def exists(self) -> bool:
        """Whether a coordinator ever ran here.

        Raises:
            Misconfigured, Transient: the server cannot be asked.
        """
        return self._has(DATABASE, "")

    def has(self, design: Design) -> bool:
        """Whether the tables of a design were ever made; raises as :meth:`exists`."""
        return self._has(design.file, design.suffix)

    def _has(self, file: str, suffix: str) -> bool:
        if self.schema is None:
            return (self.state_dir / file).is_file()
        from coordinator.storage.engines.postgres_look import has_tables  # noqa: PLC0415 - only where it is configured

        return has_tables(self.schema.beside(suffix))

    def mark(self, design: Design, store: Database) -> tuple[int, ...]:
        """A mark that changes with each change to the tables of a design, without reading them.

        Args:
            design: the tables.
            store: the coordinator's own tables, open: on PostgreSQL they are in the same database.

        Raises:
            Transient: the server cannot be reached.
        """
        if self.schema is not None:
            from coordinator.storage.engines.postgres_look import changes_in  # noqa: PLC0415 - only where it is configured

            with store.transaction() as connection:
                return changes_in(connection, self.schema.beside(design.suffix).name)
        file = self.state_dir / design.file
        found = [_stamp(one) for one in (file, file.with_name(f"{file.name}-wal"))]
        return tuple(number for stamp in found for number in stamp)

    def change_mark(self, store: Database) -> Hashable:
        """A mark that changes with each write to any tables of this place, in constant time.

        Args:
            store: the coordinator's own tables, open: the mark belongs to their connection. What is read
                after the mark is as new or newer.

        Raises:
            Transient: the server cannot be reached.
        """
        own = store.change_mark()
        if self.schema is not None:
            return own
        files = [*self.state_dir.glob("*.sqlite3"), *self.state_dir.glob("*.sqlite3-wal")]
        others = sorted((one.name, _stamp(one)) for one in files if not one.name.startswith(DATABASE))
        # Readers make empty logs, too.
        return own, tuple((name, stamp) for name, stamp in others if stamp and stamp[1])

    def shared(self, design: Design, fence: SharedFence | None = None) -> SharedTables:
        """Open tables that several processes write; they are made if they are missing."""
        if self.schema is None:
            return SharedSqlite(self.state_dir / design.file, design, fence)
        from coordinator.storage.engines.shared_postgres import SharedPostgres  # noqa: PLC0415

        return SharedPostgres(self.schema, design, fence=fence)

    @contextmanager
    def reader(self, design: Design) -> Iterator[Statements | None]:
        """The same for reading alone, as of one moment; None if they were never made.

        Raises:
            Transient: the disk is full, another process holds the tables, or the server cannot be reached.
            sqlite3.Error: they are damaged.
        """
        if not self.has(design):
            yield None
        elif self.schema is None:
            file = self.state_dir / design.file
            with sqlite_errors(file, opening=True), closing(open_reader(file)) as tables:
                tables.row_factory = sqlite3.Row
                tables.execute("BEGIN")
                is_made = tables.execute("PRAGMA user_version").fetchone()[0] > 0
                yield tables if is_made else None  # another process makes them just now
        else:
            from coordinator.storage.engines.shared_postgres import SharedPostgres  # noqa: PLC0415

            with (
                closing(SharedPostgres(self.schema, design, read_only=True)) as shared,
                shared.reading() as tables,
            ):
                yield tables


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        info = file.stat()
    except OSError:
        return ()
    return info.st_ino, info.st_size, info.st_mtime_ns
