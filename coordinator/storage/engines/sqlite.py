"""SQLite: one file in the state folder, in WAL mode, each commit synced."""

import sqlite3
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import StaticPool

from coordinator.storage import schema
from coordinator.storage.backup import unsound
from coordinator.storage.engines.base import Fence, TableEngine
from coordinator.storage.migrations import TableVersion, keep_copy, require_readable
from protocol.errors import LichenError, Misconfigured, Transient
from runtime.storage import sqlite
from runtime.storage.files import after_commit, before_commit
from runtime.storage.folder_lock import FolderLock, is_locked
from runtime.storage.sqlite_writer import open_writer, used_bytes

_WAL_BYTES: Final = 8 * 1024 * 1024
"""The write-ahead log is truncated to this size after a checkpoint."""


class DatabaseDamaged(Misconfigured):
    """The database is damaged; :mod:`coordinator.recovery.rebuild` repairs it at the start."""


def is_damage(error: DatabaseError) -> bool:
    """Whether SQLite reports that the file is damaged."""
    return sqlite.is_damage(error.orig)


def _sorted(error: DatabaseError, path: Path, *, opening: bool = False) -> LichenError:
    """As :func:`runtime.storage.sqlite.sorted_error`; damage found at the opening leads to a rebuild."""
    if opening and is_damage(error):
        return DatabaseDamaged(
            f"{path}: cannot be used as the coordinator's database: {error.orig}; the start of the "
            "coordinator rebuilds it"
        )
    found = error.orig
    if not isinstance(found, sqlite3.Error):
        return Transient(f"{path}: {found}")
    return sqlite.sorted_error(found, path, opening=opening)


def _open_writer(path: Path) -> sqlite3.Connection:
    return open_writer(path, wal_bytes=_WAL_BYTES, isolation_level="DEFERRED")


class SqliteEngine(TableEngine):
    """A file; created unless ``read_only``.

    Args:
        path: the file.
        read_only: for commands beside the daemon.
        alone: refuse to share the file with another process of a coordinator.
    """

    insert = staticmethod(sqlite_insert)

    def __init__(self, path: Path, *, read_only: bool, alone: bool) -> None:
        self.path = path
        self.where = str(path)
        self._read_only, self._alone = read_only, alone
        self._lock: FolderLock | None = None
        opened: Callable[[Path], sqlite3.Connection] = sqlite.open_reader if read_only else _open_writer
        self.engine = sa.create_engine("sqlite://", poolclass=StaticPool, creator=lambda: opened(path))
        self._raw: Any = None
        self._place: sqlite.Place | None = None

    def open(self) -> None:
        """See the base class.

        Raises:
            DatabaseDamaged: the file is not a sound database; the message names it.
            Transient: the disk is full or fails, or another process holds the database.
            Misconfigured: access is denied, its disk is read-only, or it is of a newer lichen.
        """
        if not self._read_only:
            shared = not self._alone
            self._lock = FolderLock(self.path.with_suffix(".lock"), "coordinator", shared=shared)
        try:
            self._connection = self.engine.connect()
            self._raw = self._connection.connection.dbapi_connection
            self._prepare(self._connection)
            self._place = None if self._read_only else sqlite.Place(self.path)
        except DatabaseError as error:
            self.close()
            raise _sorted(error, self.path, opening=True) from None
        except LichenError:
            self.close()
            raise

    def _prepare(self, connection: sa.Connection) -> None:
        read_only = self._read_only
        if not read_only:
            # Not quick_check: it skips the content of indexes, and every look-up uses one.
            checked = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one())
            if checked != "ok":
                raise DatabaseDamaged(f"{self.path}: the coordinator's database is damaged: {checked}")
        tables = TableVersion.of(connection.exec_driver_sql)
        require_readable(self.path, tables, schema.VERSION)
        found = tables.version
        if read_only and 0 < found < schema.VERSION:
            raise Misconfigured(
                f"{self.path}: written by an older lichen (tables {found}); it is brought up to date when "
                "the coordinator starts"
            )
        if not read_only:
            if found >= schema.VERSION and (trouble := unsound(connection.exec_driver_sql)):
                raise DatabaseDamaged(f"{self.path}: the coordinator's database is damaged: {trouble}")
            self._bring_up_to_date(connection, found)
        connection.commit()

    def _bring_up_to_date(self, connection: sa.Connection, found: int) -> None:
        """Run all migration steps or none; a file of a newer release that this one can use stays as it is."""
        if found > schema.VERSION:
            return
        run = connection.exec_driver_sql
        run("BEGIN IMMEDIATE")
        if 0 < found < schema.VERSION:
            keep_copy(self.path, found)
        for known in range(found or schema.VERSION, schema.VERSION):
            for words in schema.UPGRADES[known]:
                run(words)
        schema.metadata.create_all(connection)
        TableVersion(schema.VERSION, schema.READABLE_FROM).write(run)

    @contextmanager
    def transaction(self, *, write: bool, fence: Fence | None) -> Iterator[sa.Connection]:
        """See the base class."""
        connection = self.connection
        try:
            with connection.begin():
                if write:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                before = self._raw.total_changes
                yield connection
                if writes := self._raw.total_changes != before:
                    if fence is not None:
                        fence(connection)
                    before_commit(self.path)
            if writes:
                after_commit(self.path)
            self.require_there()
        except OperationalError as error:
            raise _sorted(error, self.path) from error
        except sqlite3.OperationalError as error:
            raise sqlite.sorted_error(error, self.path) from error

    def used_bytes(self) -> int:
        """Bytes of the pages in use; removed rows leave free pages, which are reused."""
        return used_bytes(self._raw)

    def see_one_moment(self) -> None:
        """A transaction of SQLite sees no more than its first read."""

    def change_mark(self) -> Hashable:
        """See the base class."""
        return int(self.connection.exec_driver_sql("PRAGMA data_version").scalar_one())

    def count_on(self, connection: sa.Connection) -> None:
        """SQLite numbers a row after the largest number."""

    def require_there(self) -> None:
        """Check that the file can be found again after a restart.

        Raises:
            Transient: the folder was removed, or another disk is mounted over it.
        """
        if self._place is not None:
            self._place.require()

    def is_served(self) -> bool | None:
        """See the base class."""
        return is_locked(self.path.with_suffix(".lock"))

    def close(self) -> None:
        """See the base class."""
        if self._connection is not None:
            self._connection.close()
        self.engine.dispose()
        if self._lock is not None:
            self._lock.close()
