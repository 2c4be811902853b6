"""The coordinator's database: one connection behind a lock; every write is a transaction synced to disk.

The methods are synchronous and thread-safe; callers on the event loop use ``asyncio.to_thread``. What differs
between SQLite and PostgreSQL is in :mod:`coordinator.storage.engines`.
"""

import json
import threading
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import sqlalchemy as sa

from coordinator.round_machine.events import JOURNALED, Checkpoint, Event
from coordinator.storage import schema
from coordinator.storage.device_lists import packed_event, unpacked
from coordinator.storage.engines.base import Fence, Insert, TableEngine
from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.engines.sqlite import DatabaseDamaged, SqliteEngine

OTHERS: Final = "(others)"
"""The device under which refusals are counted if there are too many names."""
_MAX_REFUSAL_ROWS: Final = 20_000
_KEPT_EVENTS: Final = 5_000
_EVENT_BYTES: Final = 1024 * 1024
"""Events that are kept although a checkpoint replaced them."""


def engine_for(place: Path | PostgresSchema, *, read_only: bool, alone: bool) -> TableEngine:
    """The engine of a place, not yet open."""
    if isinstance(place, Path):
        return SqliteEngine(place, read_only=read_only, alone=alone)
    # Only where it is configured.
    from coordinator.storage.engines.postgres import PostgresEngine  # noqa: PLC0415
    from coordinator.storage.engines.postgres_tables import coordinator_tables  # noqa: PLC0415

    return PostgresEngine(place, coordinator_tables(), read_only=read_only, alone=alone)


class Database:
    """Opens (and creates, unless ``read_only``) the coordinator's tables, and checks them.

    Args:
        place: the file ``coordinator.sqlite3``, or a schema of PostgreSQL.
        read_only: for commands beside the daemon.
        alone: refuse to share the tables with another process of a coordinator.
        fence: called before each commit that wrote something; what it raises undoes the transaction.

    Raises:
        DatabaseDamaged: the file is not a sound database; the message names it.
        Transient: the disk is full or fails, another process holds the database, or the server cannot be
            reached.
        Misconfigured: access is denied, the disk is read-only, the tables are of a newer lichen, or the
            server is not set up for them.
    """

    def __init__(
        self,
        place: Path | PostgresSchema,
        *,
        read_only: bool = False,
        alone: bool = True,
        fence: Fence | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._refusal_rows = -1
        self._upserts: dict[tuple[str, tuple[str, ...]], Insert] = {}
        self._fence = fence
        self.engine = engine_for(place, read_only=read_only, alone=alone)
        self.engine.open()

    @property
    def where(self) -> str:
        """The place of the tables for messages, without secrets."""
        return self.engine.where

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sa.Connection]:
        """A transaction, on disk at its end. May be nested; the outermost one commits.

        Args:
            write: it reads what its writes depend on, and other processes write, too. SQLite then takes the
                write lock at the begin; on PostgreSQL the rows must be locked (``with_for_update``).

        Raises:
            Transient: the disk is full or cannot be written now, and nothing was changed; or the file is
                gone, or the server cannot be reached.
        """
        with self._lock:
            if self.engine.in_transaction:
                yield self.engine.connection
                return
            with self.engine.transaction(write=write, fence=self._fence) as connection:
                yield connection

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """A transaction that reads everything as of one moment."""
        with self._lock, self.transaction() as connection:
            self.engine.see_one_moment()
            yield connection

    def change_mark(self) -> Hashable:
        """A mark that changes with each write of others to the tables, in constant time.

        It belongs to this connection. What is read after it, in the same transaction, is as new or newer.
        """
        with self.transaction():
            return self.engine.change_mark()

    def require_there(self) -> None:
        """Check that what is written can be found again after a restart; does not wait for other threads.

        Raises:
            Transient: the folder was removed, or another disk is mounted over it; or the database is not in
                the state that this process knows.
        """
        self.engine.require_there()

    def is_served(self) -> bool | None:
        """Whether a coordinator runs on the tables; None if that cannot be seen."""
        with self._lock:
            return self.engine.is_served()

    def rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        """The rows of a query as dicts."""
        with self.transaction() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def insert(self, table: sa.Table) -> Insert:
        """An INSERT that knows ``on_conflict_do_update`` and ``on_conflict_do_nothing``."""
        return self.engine.insert(table)

    def insert_new(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> int:
        """Insert the rows whose keys are not there yet; the number of them."""
        if not rows:
            return 0
        with self.transaction() as connection:
            statement = self.insert(table).values(list(rows)).on_conflict_do_nothing()
            counted = statement.execution_options(preserve_rowcount=True)
            return connection.execute(counted).rowcount

    def put(self, table: sa.Table, **values: Any) -> None:
        """Insert a row, or overwrite the one with the same key."""
        with self.transaction() as connection:
            connection.execute(self._upsert(table, tuple(values)), values)

    def _upsert(self, table: sa.Table, names: tuple[str, ...]) -> Insert:
        """The statement of :meth:`put`, cached: to build it costs more than to run it."""
        found = self._upserts.get((table.name, names))
        if found is None:
            keys = [column.name for column in table.primary_key]
            statement = self.insert(table)
            rest = {name: statement.excluded[name] for name in names if name not in keys}
            found = statement.on_conflict_do_update(index_elements=keys, set_=rest)
            self._upserts[table.name, names] = found
        return found

    def put_all(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows with the same columns, or overwrite those with the same keys; one statement."""
        if rows:
            with self.transaction() as connection:
                connection.execute(self._upsert(table, tuple(rows[0])), rows)

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
        """Bytes of the rows, about; removed rows leave room that is used again."""
        with self.transaction():
            return self.engine.used_bytes()

    def put_meta(self, values: Mapping[str, str]) -> None:
        """Store texts."""
        rows = [{"key": key, "value": value} for key, value in values.items()]
        with self.transaction() as connection:
            connection.execute(self._upsert(schema.meta, ("key", "value")), rows)

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
        size = sa.func.length(sa.cast(table.c.event, sa.Text))
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
                    raise DatabaseDamaged(f"{self.where}: events: row {row['seq']} is not what was written")
            return [(row["now"], JOURNALED.validate_python(unpacked(row["event"]))) for row in rows]
        except (ValueError, TypeError) as error:  # no JSON, no number, no event: rows older than checksums
            raise DatabaseDamaged(f"{self.where}: events: a row cannot be read: {error}"[:500]) from None

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
    """Checksum of an event: no engine notices a changed value."""
    return zlib.crc32(json.dumps([now, event], sort_keys=True).encode())
