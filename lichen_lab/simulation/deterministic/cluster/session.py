"""One session of a process on the simulated PostgreSQL server, as a DBAPI connection.

The real engine (``coordinator.storage.engines.postgres``) talks to it through SQLAlchemy. The tables are
SQLite's; what the engine asks of PostgreSQL itself is translated, and row locks are seen in its statements.
"""

import re
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from lichen_lab.simulation.deterministic.machine.process_life import ProcessLife

_LOCKS: Final = re.compile(r"\s+FOR (?:UPDATE|(?:KEY )?SHARE)(?: OF \w+)?\s*\Z")
_READS: Final = ("SELECT", "PRAGMA", "SET")
_COLUMNS: Final = (
    "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
)
_INSTEAD: Final = (
    ("information_schema.columns", _COLUMNS),
    ("set_config(", "SELECT ''"),
    ("pg_advisory_xact_lock(", "SELECT 1"),
    ("pg_try_advisory_lock", "SELECT 1"),
    ("pg_total_relation_size(", "SELECT 0"),
    ("SET TRANSACTION ", "SELECT 1"),
    (
        "to_regclass('table_version') IS NOT NULL",
        "SELECT count(*) FROM sqlite_master WHERE name = 'table_version'",
    ),
    ("to_regclass(", "SELECT (SELECT name FROM sqlite_master WHERE name = 'table_version')"),
)
"""Part of a statement for PostgreSQL -> what SQLite answers the same to."""


@lru_cache(1024)
def translated(sql: str) -> tuple[str, bool]:
    """A statement for SQLite, and whether it locks rows or writes."""
    for part, instead in _INSTEAD:
        if part in sql:
            return instead, False
    bare = _LOCKS.sub("", sql)
    writes = not sql.lstrip().upper().startswith(_READS)
    return bare.replace("%s", "?"), writes or bare != sql


class _Compiler(SQLiteCompiler):
    """Keeps the row locks of a SELECT in its text."""

    def for_update_clause(self, select: Any, **_: Any) -> str:
        return " FOR SHARE" if select._for_update_arg.read else " FOR UPDATE"  # noqa: SLF001 - SQLAlchemy's compilers read it so


class ServerDialect(SQLiteDialect_pysqlite):
    """Statements as the simulated server takes them."""

    statement_compiler = _Compiler
    supports_statement_cache = True


class SessionServer(Protocol):
    """The other end of a session."""

    def statement(self, session: "ServerSession") -> None:
        """A statement is on its way."""

    def lock(self, session: "ServerSession") -> None:
        """It needs locks."""

    def commit(self, session: "ServerSession") -> None:
        """Commit what it wrote."""

    def undo(self, session: "ServerSession") -> None:
        """Roll its transaction back."""

    def end(self, session: "ServerSession", why: str) -> None:
        """End it."""


class SimCursor:
    """A DBAPI cursor; all rows are read at once, as by psycopg."""

    arraysize = 1

    def __init__(self, session: "ServerSession") -> None:
        self._session = session
        self._cursor = session.raw.cursor()
        self._rows: list[Any] = []

    @property
    def description(self) -> Any:
        """See DBAPI."""
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        """See DBAPI."""
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        """See DBAPI."""
        return self._cursor.lastrowid

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement."""
        words = self._session.before(sql)
        try:
            self._cursor.execute(words, parameters if "?" in words else ())
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            raise NotImplementedError(f"the simulated server does not take {sql!r}: {error}") from error
        self._rows = self._cursor.fetchall()

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each row."""
        self._cursor.executemany(self._session.before(sql), rows)
        self._rows = []

    def fetchone(self) -> Any:
        """See DBAPI."""
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> list[Any]:
        """See DBAPI."""
        found, self._rows = self._rows, []
        return found

    def close(self) -> None:
        """See DBAPI."""
        self._rows = []


class ServerSession:
    """See the module.

    Args:
        server: the other end.
        raw: its own connection to the tables.
        schema: of them.
        life: of the process.
    """

    def __init__(
        self, server: SessionServer, raw: sqlite3.Connection, schema: str, life: ProcessLife | None
    ) -> None:
        self._server = server
        self.schema = schema
        self.raw = raw
        self.life = life
        self.node = "" if life is None else life.node
        self.lost = ""
        """Why the client has lost it; empty if it works."""
        self.tables: set[str] = set()
        """What the open transaction has written."""
        self.lingers = False
        """The client has lost it, and the server is still busy with its commit."""
        self.used = 0
        """Statements so far."""

    def cursor(self) -> SimCursor:
        """See DBAPI."""
        if self.lost:
            raise lost(self.lost)
        return SimCursor(self)

    def before(self, sql: str) -> str:
        """The server takes a statement: wait for it, and for the lock that it needs; the words for SQLite."""
        words, locks = translated(sql)
        self._server.statement(self)
        if locks:
            self._server.lock(self)
            self._note(words)
        return words

    def _note(self, words: str) -> None:
        parts = words.split(None, 3)
        if parts[0].upper() in {"INSERT", "DELETE"}:
            self.tables.add(parts[2])
        elif parts[0].upper() == "UPDATE":
            self.tables.add(parts[1])

    def commit(self) -> None:
        """See DBAPI."""
        if self.lost:
            raise lost(self.lost)
        if self.raw.in_transaction:
            self._server.commit(self)

    def rollback(self) -> None:
        """See DBAPI."""
        if self.lost:
            raise lost(self.lost)
        self._server.undo(self)

    def close(self) -> None:
        """See DBAPI."""
        if not self.lingers:
            self._server.end(self, "the client closed it")

    def create_function(self, *_: Any, **__: Any) -> None:
        """SQLAlchemy's own functions for SQLite: nothing here uses them."""


def lost(why: str) -> sqlite3.OperationalError:
    """The error for a connection that is gone: like psycopg's, it has no code."""
    return sqlite3.OperationalError(why)


def refused(code: str, words: str) -> sqlite3.OperationalError:
    """The error for a statement that the server refuses, with PostgreSQL's code."""
    error = sqlite3.OperationalError(words)
    error.sqlstate = code  # type: ignore[attr-defined] # as psycopg's
    return error
