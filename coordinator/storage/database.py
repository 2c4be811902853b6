"""The coordinator's database: one connection behind a lock; every write is a transaction synced to disk.

The methods are synchronous and thread-safe; callers on the event loop use ``asyncio.to_thread``.
"""

import json
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import StaticPool

from coordinator.round_machine.events import JOURNALED, Checkpoint, Event
from coordinator.storage import schema
from coordinator.storage.device_lists import packed_event, unpacked
from coordinator.storage.migrations import TableVersion, keep_copy, require_readable
from protocol.errors import LichenError, Misconfigured, Transient
from runtime.storage import sqlite
from runtime.storage.files import after_commit, before_commit
from runtime.storage.folder_lock import FolderLock
from runtime.storage.sqlite_writer import open_writer, used_bytes

OTHERS: Final = "(others)"
"""The device under which refusals are counted if there are too many names."""
_MAX_REFUSAL_ROWS: Final = 20_000
_WAL_BYTES: Final = 8 * 1024 * 1024
"""The write-ahead log is truncated to this size after a checkpoint."""
_KEPT_EVENTS: Final = 5_000
_EVENT_BYTES: Final = 1024 * 1024
"""Events that are kept although a checkpoint replaced them."""


@lru_cache
def _upsert(table: sa.Table, names: tuple[str, ...]) -> Insert:
    """The statement of :meth:`Database.put`, cached: to build it costs more than to run it."""
    keys = [column.name for column in table.primary_key]
    statement = insert(table)
    rest = {name: statement.excluded[name] for name in names if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=rest)


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


class DatabaseDamaged(Misconfigured):
    """The database is damaged; :mod:`coordinator.recovery.rebuild` repairs it at the start."""


class Database:
    """Opens (and creates, unless ``read_only``) ``coordinator.sqlite3`` and checks its pages.

    Raises:
        DatabaseDamaged: the file is not a sound database; the message names it.
        Transient: the disk is full or fails, or another process holds the database.
        Misconfigured: access is denied, its disk is read-only, or it is of a newer lichen.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._refusal_rows = -1
        self._alone = None if read_only else FolderLock(path.with_suffix(".lock"), "coordinator")
        opened = sqlite.open_reader if read_only else _open_writer
        self._engine = sa.create_engine("sqlite://", poolclass=StaticPool, creator=lambda: opened(path))
        try:
            self._connection = self._engine.connect()
            self._raw: Any = self._connection.connection.dbapi_connection
            self._prepare(read_only=read_only)
            self._place = None if read_only else sqlite.Place(path)
        except DatabaseError as error:
            self._give_up()
            raise _sorted(error, path, opening=True) from None
        except LichenError:
            self._give_up()
            raise

    def _prepare(self, *, read_only: bool) -> None:
        connection = self._connection
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
            if found >= schema.VERSION and (trouble := schema.unsound(connection.exec_driver_sql)):
                raise DatabaseDamaged(f"{self.path}: the coordinator's database is damaged: {trouble}")
            self._bring_up_to_date(found)
        connection.commit()

    def _bring_up_to_date(self, found: int) -> None:
        """Run all migration steps or none; a file of a newer release that this one can use stays as it is."""
        if found > schema.VERSION:
            return
        run = self._connection.exec_driver_sql
        run("BEGIN IMMEDIATE")
        if 0 < found < schema.VERSION:
            keep_copy(self.path, found)
        for known in range(found or schema.VERSION, schema.VERSION):
            for words in schema.UPGRADES[known]:
                run(words)
        schema.metadata.create_all(self._connection)
        TableVersion(schema.VERSION, schema.READABLE_FROM).write(run)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()
            self._give_up()

    def _give_up(self) -> None:
        self._engine.dispose()
        if self._alone is not None:
            self._alone.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """A transaction, on disk at its end. May be nested; the outermost one commits.

        Raises:
            Transient: the disk is full or cannot be written now, and nothing was changed; or the file is
                gone.
        """
        with self._lock:
            if self._connection.in_transaction():
                yield self._connection
                return
            try:
                with self._connection.begin():
                    before = self._raw.total_changes
                    yield self._connection
                    if writes := self._raw.total_changes != before:
                        before_commit(self.path)
                if writes:
                    after_commit(self.path)
                self.require_there()
            except OperationalError as error:
                raise _sorted(error, self.path) from error
            except sqlite3.OperationalError as error:
                raise sqlite.sorted_error(error, self.path) from error

    def require_there(self) -> None:
        """Check that the file can be found again after a restart; does not wait for other threads.

        Raises:
            Transient: the folder was removed, or another disk is mounted over it.
        """
        if self._place is not None:
            self._place.require()

    def rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        """The rows of a query as dicts."""
        with self.transaction() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def put(self, table: sa.Table, **values: Any) -> None:
        """Insert a row, or overwrite the one with the same key."""
        with self.transaction() as connection:
            connection.execute(_upsert(table, tuple(values)), values)

    def put_all(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows with the same columns, or overwrite those with the same keys; one statement."""
        if rows:
            with self.transaction() as connection:
                connection.execute(_upsert(table, tuple(rows[0])), rows)

    def remove(self, table: sa.Table, **key: Any) -> None:
        """Remove the row with this key, if there is one."""
        where = sa.and_(*(table.c[name] == value for name, value in key.items()))
        with self.transaction() as connection:
            connection.execute(table.delete().where(where))

    def get_meta(self, key: str) -> str | None:
        """A stored text."""
        found = self.rows(sa.select(schema.meta.c.value).where(schema.meta.c.key == key))
        return None if not found else str(found[0]["value"])

    def used_bytes(self) -> int:
        """Bytes of the pages in use; removed rows leave free pages, which are reused."""
        with self.transaction():
            return used_bytes(self._raw)

    def put_meta(self, values: Mapping[str, str]) -> None:
        """Store texts."""
        rows = [{"key": key, "value": value} for key, value in values.items()]
        with self.transaction() as connection:
            connection.execute(_upsert(schema.meta, ("key", "value")), rows)

    def append(self, event: Event | Checkpoint, now: float) -> None:
        """Add an event to the round machine's journal; events before the last checkpoint are trimmed."""
        table = schema.events
        content = packed_event(JOURNALED.dump_python(event, mode="json"))
        with self.transaction() as connection:
            connection.execute(table.insert().values(now=now, event=content, crc=_crc(now, content)))
            if isinstance(event, Checkpoint):
                self._forget_events(connection)

    @staticmethod
    def _forget_events(connection: sa.Connection) -> None:
        """Trim the events before the newest checkpoint, which only people read, to the newest ones."""
        table = schema.events
        newest = connection.execute(sa.select(sa.func.max(table.c.seq))).scalar_one()
        size = sa.func.length(sa.cast(table.c.event, sa.LargeBinary))
        old = sa.select(table.c.seq, size).where(table.c.seq < newest).order_by(table.c.seq.desc())
        left = _EVENT_BYTES
        for seq, length in connection.execute(old.limit(_KEPT_EVENTS + 1)):
            left -= length
            if left < 0 or seq < newest - _KEPT_EVENTS:
                connection.execute(table.delete().where(table.c.seq <= seq))
                return

    def journal(self) -> list[tuple[float, Event | Checkpoint]]:
        """The events from the last checkpoint on.

        Raises:
            DatabaseDamaged: an event is damaged.
        """
        table = schema.events
        last = sa.select(sa.func.max(table.c.seq)).where(table.c.event["type"].as_string() == "checkpoint")
        query = (
            sa.select(table)
            .where(table.c.seq >= sa.func.coalesce(last.scalar_subquery(), 0))
            .order_by(table.c.seq)
        )
        try:
            rows = self.rows(query)
            for row in rows:
                if row["crc"] not in (None, _crc(row["now"], row["event"])):
                    raise DatabaseDamaged(f"{self.path}: events: row {row['seq']} is not what was written")
            return [(row["now"], JOURNALED.validate_python(unpacked(row["event"]))) for row in rows]
        except (ValueError, TypeError) as error:  # no JSON, no number, no event: rows older than checksums
            raise DatabaseDamaged(f"{self.path}: events: a row cannot be read: {error}"[:500]) from None

    def count_refusals(self, device: str, reason: str, count: int, detail: str, wall: float) -> None:
        """Add to the counts of refusals, by device and reason; beyond a limit of rows under ``(others)``."""
        table = schema.refusals
        with self.transaction() as connection:
            known = connection.execute(
                sa.select(table.c.count).where(table.c.device == device, table.c.reason == reason)
            ).scalar_one_or_none()
            full = known is None and self._full(connection)
            if full and device != OTHERS:
                self.count_refusals(OTHERS, reason, count, detail, wall)
                return
            last = {"last_detail": detail, "last_wall": wall}
            self.put(table, device=device, reason=reason, count=(known or 0) + count, **last)
            if known is None:
                self._refusal_rows += (
                    1  # also for a transaction that fails: the count may be too high, never too low
                )

    def _full(self, connection: sa.Connection) -> bool:
        """The rows are counted once: counting them for each new name would hold the lock for seconds."""
        if self._refusal_rows < 0:
            rows = connection.execute(sa.select(sa.func.count()).select_from(schema.refusals)).scalar_one()
            self._refusal_rows = int(rows)
        return self._refusal_rows >= _MAX_REFUSAL_ROWS


def _crc(now: float, event: dict[str, Any]) -> int:
    """Checksum of an event: SQLite does not notice a changed value."""
    return zlib.crc32(json.dumps([now, event], sort_keys=True).encode())
