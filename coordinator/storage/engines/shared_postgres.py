"""Tables that several processes write, in a schema of PostgreSQL."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa

from coordinator.storage.engines.postgres import PostgresEngine
from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.engines.postgres_tables import KnownTables
from coordinator.storage.engines.shared_tables import Design, SharedFence
from coordinator.storage.migrations import TableVersion

_CLOSE_S: Final = 1.0
_WORDS: Final = (
    (" WITHOUT ROWID", ""),
    (" REAL", " DOUBLE PRECISION"),
    (" TEXT", ' TEXT COLLATE "C"'),
)
"""SQLite's words in the statements of a design, and PostgreSQL's."""
_LOCK: Final = "SELECT changes FROM table_version WHERE id = 1"


class _Row(tuple[Any, ...]):  # noqa: SLOT001 - each query makes a class of its own
    """A row, by position or by name."""

    names: tuple[str, ...]

    def keys(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.names

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)


class _Cursor:
    """See :class:`coordinator.storage.engines.shared_tables.Cursor`."""

    def __init__(self, result: sa.CursorResult[Any]) -> None:
        self.rowcount = result.rowcount
        self._rows: list[Any] = []
        if result.returns_rows:
            names = tuple(result.keys())
            kind = type("_NamedRow", (_Row,), {"names": names})
            self._rows = [kind(row) for row in result]
        self._next = iter(self._rows)

    def fetchone(self) -> Any:
        return next(self._next, None)

    def fetchall(self) -> list[Any]:
        return list(self._next)

    def __iter__(self) -> Iterator[Any]:
        return self._next


class _Statements:
    """See :class:`coordinator.storage.engines.shared_tables.Statements`; the first change moves the mark."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.moved = False

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> _Cursor:
        result = _Cursor(self._connection.exec_driver_sql(_translated(sql), tuple(parameters)))
        if not self.moved and result.rowcount > 0 and not sql.lstrip().upper().startswith("SELECT"):
            self.moved = True
            self._connection.exec_driver_sql("UPDATE table_version SET changes = changes + 1")
        return result

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        for values in parameters:
            self.execute(sql, values)


def _translated(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _tables_of(design: Design) -> KnownTables:
    statements = list(design.schema)
    for old, new in _WORDS:
        statements = [one.replace(old, new) for one in statements]
    return KnownTables(TableVersion(design.version, design.readable_from), design.upgrades, statements)


class SharedPostgres:
    """See :class:`coordinator.storage.engines.shared_tables.SharedTables`.

    Args:
        place: the schema of the coordinator's own tables; these are in one beside it.
        design: the tables.
        read_only: for commands that only look.
        fence: called before each commit that wrote something; what it raises undoes the transaction.

    Raises:
        Misconfigured, Transient: as :class:`PostgresEngine`.
    """

    def __init__(
        self,
        place: PostgresSchema,
        design: Design,
        *,
        read_only: bool = False,
        fence: SharedFence | None = None,
    ) -> None:
        self._fence = fence
        self._lock = threading.RLock()
        self._engine = PostgresEngine(
            place.beside(design.suffix),
            _tables_of(design),
            read_only=read_only,
            alone=False,
            follows=True,
            path=(place.name,),
        )
        self._engine.open()

    @property
    def where(self) -> str:
        """See the protocol."""
        return self._engine.where

    @contextmanager
    def change(self) -> Iterator[_Statements]:
        """See the protocol."""
        with self._lock, self._engine.transaction(write=True, fence=None) as connection:
            connection.exec_driver_sql(f"{_LOCK} FOR UPDATE")
            statements = _Statements(connection)
            yield statements
            if statements.moved and self._fence is not None:
                self._fence(statements)

    def rows(self, query: str, *values: Any) -> list[Any]:
        """See the protocol."""
        with self._lock, self._transaction() as connection:
            return _Statements(connection).execute(query, values).fetchall()

    @contextmanager
    def reading(self) -> Iterator[_Statements]:
        """A transaction that reads everything as of one moment."""
        with self._lock, self._transaction() as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield _Statements(connection)

    def mark(self) -> tuple[int, int]:
        """See the protocol."""
        with self._lock, self._transaction() as connection:
            return int(connection.exec_driver_sql(_LOCK).scalar_one()), 0

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """The open transaction, or a new one."""
        if self._engine.in_transaction:
            yield self._engine.connection
            return
        with self._engine.transaction(write=False, fence=None) as connection:
            yield connection

    def close(self) -> None:
        """See the protocol."""
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                self._engine.close()
            finally:
                self._lock.release()
