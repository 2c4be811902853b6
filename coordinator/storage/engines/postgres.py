"""PostgreSQL: one session, restored when it is lost; no commit is reported that did not take place.

A commit whose answer is lost may have taken place or not. Each transaction that writes therefore also writes
its number into the writer's own row (table ``writers``): after a new connection, that row tells. A writer
whose row is not where it left it knows a state that the database does not have, and must start again.
"""

import secrets
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from coordinator.storage.engines import postgres_tables as tables
from coordinator.storage.engines.base import Fence, TableEngine
from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.engines.postgres_errors import is_lost, sorted_error
from coordinator.storage.engines.postgres_look import is_locked, used_bytes
from coordinator.storage.engines.postgres_session import engine_of, lock_numbers, take_lock
from coordinator.storage.engines.postgres_tables import KnownTables
from protocol.errors import LichenError, Misconfigured, Transient

log = structlog.get_logger(__name__)

_RESOLVE_S: Final = 20.0
"""How long a commit whose answer was lost is looked up before its caller gets an error."""
_IDLE_S: Final = 2.0
"""A session that was not used for longer is tried first."""
_RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses between attempts to connect; the last one from then on."""
_RELEASE_S: Final = 5.0
"""How long a start waits for the lock of a process that has ended: the server releases it a little later."""
_READS: Final = ("SELECT", "SHOW", "SET")


class PostgresEngine(TableEngine):
    """A schema; created unless ``read_only``.

    Args:
        place: server, database and schema.
        known: the tables.
        read_only: for commands beside the daemon.
        alone: refuse to share the schema with another process of a coordinator.
        follows: the caller reads again what others changed, so it can go on with a database that is not where
            it left it.
        path: further schemas in which tables are looked up.
    """

    insert = staticmethod(postgresql.insert)

    def __init__(
        self,
        place: PostgresSchema,
        known: KnownTables,
        *,
        read_only: bool,
        alone: bool,
        follows: bool = False,
        path: tuple[str, ...] = (),
    ) -> None:
        self.place, self.where = place, place.where
        self._known, self._follows = known, follows
        self._read_only, self._alone = read_only, alone and not read_only
        self.engine = engine_of(place, path, read_only=read_only, alone=alone)
        sa.event.listen(self.engine, "before_cursor_execute", self._note)
        self._writer, self._seq = secrets.token_hex(12), 0
        self._wrote = self._opened = False
        self._doubtful: int | None = None
        self._used = self._next_try = 0.0
        self._failures = 0
        self._lost = ""

    # ---- the session

    def open(self) -> None:
        """See the base class."""
        try:
            connection = self._connect()
            with tables.preparing(connection, self.place, self._known, read_only=self._read_only):
                if not self._read_only:
                    tables.enter(connection, self._writer, self._seq, alone=self._alone)
        except (SQLAlchemyError, LichenError) as error:
            self.close()
            if isinstance(error, LichenError):
                raise
            raise sorted_error(error, self.place, opening=True) from None
        self._opened = True

    def _connect(self) -> sa.Connection:
        connection = self.engine.connect()
        try:
            if not (self._read_only or self._follows):
                self._lock(connection)
            connection.rollback()
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection, self._used = connection, time.monotonic()
        return connection

    def _lock(self, connection: sa.Connection) -> None:
        wait_s = 0.0 if self._opened else _RELEASE_S
        if not take_lock(connection, self.place, shared=not self._alone, wait_s=wait_s):
            words = f"{self.where}: another coordinator runs on this schema; stop it first"
            raise (Transient if self._opened else Misconfigured)(words)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is gone already
                connection.invalidate()
                connection.close()

    def _ready(self) -> sa.Connection:
        """The session, restored if it was lost.

        Raises:
            Transient: the server cannot be reached now.
        """
        self.require_there()
        if self._connection is not None and time.monotonic() - self._used > _IDLE_S:
            self._try()
        if self._connection is None:
            if time.monotonic() < self._next_try:  # callers must not wait for the network one after the other
                raise Transient(self._why)
            self._restore()
        return self.connection

    def _try(self) -> None:
        connection = self.connection
        try:
            connection.exec_driver_sql("SELECT 1")
            connection.rollback()
        except SQLAlchemyError:
            self._drop()

    def _restore(self) -> None:
        """Connect again, and check that the database is where this process left it."""
        try:
            connection = self._connect()
            seq = self._stored_seq(connection)
        except (SQLAlchemyError, LichenError) as error:
            self._drop()
            found = error if isinstance(error, LichenError) else sorted_error(error, self.place)
            if not self._failures:
                log.warning("storage_lost", where=self.where, why=str(found))
            pause = _RETRY_S[min(self._failures, len(_RETRY_S) - 1)]
            self._failures, self._next_try = self._failures + 1, time.monotonic() + pause
            self._why = str(found)
            raise Transient(self._why) from None
        if self._failures:
            log.info("storage_back", where=self.where, attempts=self._failures)
        self._failures, self._why = 0, ""
        self._compare(seq)

    def _stored_seq(self, connection: sa.Connection) -> int | None:
        """The number of this writer's last commit; waits for a commit that is still under way."""
        if self._read_only:
            return self._seq
        with connection.begin():
            row = connection.exec_driver_sql(
                "SELECT seq, owner FROM writers, table_version WHERE writer = %s FOR UPDATE OF writers",
                (self._writer,),
            ).first()
        if row is None or (self._alone and row[1] != self._writer):
            return None
        return int(row[0])

    def _compare(self, seq: int | None) -> None:
        """Compare the stored number with the expected one; a doubtful commit is settled before this."""
        if self._doubtful is not None and seq == self._seq:
            self._doubtful = None
        if seq != self._seq and self._follows:
            connection, self._doubtful = self.connection, None
            with connection.begin():
                tables.enter(connection, self._writer, self._seq, alone=self._alone)
        elif seq != self._seq:
            self._lost = (
                f"{self.where}: the database is not where this coordinator left it (another one ran, the "
                "database was restored, or a commit took place whose answer was lost): it must start again"
            )
            raise Transient(self._lost)

    # ---- transactions

    def _note(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.lstrip().upper().startswith(_READS):
            self._wrote = True

    @contextmanager
    def transaction(self, *, write: bool, fence: Fence | None) -> Iterator[sa.Connection]:
        """See the base class. ``write`` changes nothing: rows are locked as they are written."""
        del write
        connection = self._ready()
        transaction = connection.begin()
        self._wrote = False
        try:
            yield connection
            wrote = self._wrote
            if wrote:
                if fence is not None:
                    fence(connection)
                query = "UPDATE writers SET seq = %s, wall = %s WHERE writer = %s"
                connection.exec_driver_sql(query, (self._seq + 1, time.time(), self._writer))
        except BaseException as error:
            self._roll_back(transaction, error)
            if isinstance(error, DBAPIError):
                raise sorted_error(error, self.place) from error
            raise
        self._commit(transaction, wrote=wrote)
        self._used = time.monotonic()

    def _roll_back(self, transaction: sa.RootTransaction, error: BaseException) -> None:
        if isinstance(error, DBAPIError) and is_lost(error):
            self._drop()
            return
        try:
            transaction.rollback()
        except SQLAlchemyError:
            self._drop()

    def _commit(self, transaction: sa.RootTransaction, *, wrote: bool) -> None:
        try:
            transaction.commit()
        except SQLAlchemyError as error:
            lost = not isinstance(error, DBAPIError) or is_lost(error)
            self._drop()
            if wrote and lost:
                self._settle()
                return
            raise sorted_error(error, self.place) from error
        self._seq += wrote

    def _settle(self) -> None:
        """Find out whether the last commit took place; returns if it did.

        Raises:
            Transient: it did not; or that cannot be found out in time, and then this process must start again
                if it did.
        """
        self._doubtful = self._seq + 1
        log.warning("commit_in_doubt", where=self.where)
        until, tried = time.monotonic() + _RESOLVE_S, 0
        while True:
            try:
                seq = self._stored_seq(self._connect())
                break
            except (SQLAlchemyError, LichenError) as error:
                self._drop()
                found = error if isinstance(error, LichenError) else sorted_error(error, self.place)
                if time.monotonic() > until:
                    self._why = f"{found}; whether the last change was stored is not known yet"
                    raise Transient(self._why) from None
                time.sleep(_RETRY_S[min(tried, 3)])
                tried += 1
        log.info("commit_settled", where=self.where, stored=seq == self._doubtful)
        if seq == self._doubtful:
            self._seq, self._doubtful = self._doubtful, None
            return
        self._compare(seq)
        raise Transient(f"{self.where}: the connection was lost before the change was stored")

    # ---- the rest

    def used_bytes(self) -> int:
        """See the base class."""
        return used_bytes(self.connection, self._known.metadata)

    def see_one_moment(self) -> None:
        """See the base class."""
        self.connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    def change_mark(self) -> Hashable:
        """See the base class: snapshots with the same transactions see the same rows."""
        return str(self.connection.exec_driver_sql("SELECT txid_current_snapshot()::text").scalar_one())

    def count_on(self, connection: sa.Connection) -> None:
        """See the base class."""
        tables.count_on(connection, self.place.name)

    def require_there(self) -> None:
        """See the base class."""
        if self._lost:
            raise Transient(self._lost)

    def is_served(self) -> bool | None:
        """See the base class."""
        numbers = lock_numbers(self.place, "serve")
        if self.in_transaction:
            return is_locked(self.connection, numbers)
        with self.transaction(write=False, fence=None) as connection:
            return is_locked(connection, numbers)

    def close(self) -> None:
        """See the base class."""
        if self._connection is not None and self._opened and not self._read_only and not self._lost:
            with suppress(Exception), self._connection.begin():  # a row that stays is removed in a month
                self._connection.exec_driver_sql("DELETE FROM writers WHERE writer = %s", (self._writer,))
        self._lost = self._lost or f"{self.where}: the tables are closed"  # late threads must not reconnect
        self._drop()
        self.engine.dispose()
