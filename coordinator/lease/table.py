"""Leases in the database: compare-and-set on its own time. Synchronous and thread-safe."""

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
import structlog

from coordinator.lease.decisions import RENEWALS, Lease, is_free, renewed, taken
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.engines.postgres_address import SUFFIXES
from coordinator.storage.engines.shared_tables import SharedFence, Statements
from protocol.errors import Misconfigured, Transient

log = structlog.get_logger(__name__)

_NOW: Final = {
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}
"""The database's own time, by dialect: one clock for all processes."""
_HOLDER: Final = 200
"""Characters of a holder's name."""
HUNG_S: Final = 5.0
"""How long a session may hold locks and wait for its process, while a leader leads."""
_END_HUNG: Final = """
    SELECT a.pid, pg_terminate_backend(a.pid) FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
    AND a.application_name IN (
        SELECT current_setting('application_name') || beside FROM unnest(%(beside)s::text[]) beside)
    AND a.wait_event_type = 'Client'
    AND a.state_change < clock_timestamp() - make_interval(secs => %(hung_s)s)
    AND EXISTS (
        SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock'
        AND n.nspname IN (SELECT current_schema() || beside FROM unnest(%(beside)s::text[]) beside))
"""
"""A process that is stopped in the middle of a statement, or of reading the answer, keeps its locks:
PostgreSQL's limit for idle transactions runs between statements alone. Names are compared whole: those of
another fleet may begin like this one's."""


def database_time(connection: sa.Connection) -> float:
    """Unix seconds of the database's own clock."""
    return float(connection.exec_driver_sql(f"SELECT {_NOW[connection.dialect.name]}").scalar_one())


class LeaseLost(Transient):
    """Another process has the lease: nothing of the transaction was written."""


class LeaseTable:
    """The row of one role's lease.

    Args:
        store: a connection that no long transaction of this process holds back.
        role: key of the lease.
        life_s: of the lease after its last renewal.
    """

    def __init__(self, store: Database, role: str, life_s: float) -> None:
        self._store = store
        self._role = role
        self.life_s = life_s
        self._why_not_ended = ""
        self._mine = schema.leases.c.role == role

    def read(self) -> tuple[Lease, float]:
        """The lease, and the database's time.

        Raises:
            Transient: the database cannot be read now.
        """
        with self._store.transaction() as connection:
            return self._read(connection)

    def _read(self, connection: sa.Connection, *, alone: bool = False) -> tuple[Lease, float]:
        """``alone``: wait for the transactions of the holder, as :func:`fence` has it."""
        query = sa.select(schema.leases).where(self._mine)
        row = connection.execute(query.with_for_update() if alone else query).mappings().one_or_none()
        now = database_time(connection)
        return (Lease() if row is None else Lease(row["holder"], row["epoch"], row["until"])), now

    def take(self, holder: str) -> tuple[Lease | None, Lease, float]:
        """Take the lease if it is free.

        Returns:
            The lease, None if another process has it; the row before; and the database's time.

        Raises:
            Transient: the database cannot be read or written now.
        """
        found, now = self.read()  # without a write lock, which a process that only waits does not need
        mine = None
        if is_free(found, now, self.life_s):
            # the next leader must not wait for locks of the last one, which did not renew in time
            self._end_hung_sessions(self.life_s / RENEWALS)
            mine = self._change(lambda row, at: taken(row, holder[:_HOLDER], at, self.life_s), alone=True)
        return mine, found, now

    def renew(self, mine: Lease) -> Lease | None:
        """Extend a lease, and end sessions of others that hang with locks; None: another process has it.

        Raises:
            Transient: the database cannot be written now.
        """
        lease = self._change(lambda found, now: renewed(found, mine, now, self.life_s))
        if lease is not None:
            self._end_hung_sessions(HUNG_S)
        return lease

    def release(self, mine: Lease) -> None:
        """Give the lease back, so that the next holder need not wait.

        Raises:
            Transient: the database cannot be written now.
        """
        self._change(
            lambda found, now: None if renewed(found, mine, now, 0.0) is None else Lease("", mine.epoch, 0.0)
        )

    def require_there(self) -> None:
        """Check that this connection can ever be used again.

        Raises:
            Transient: it cannot; the process must start again.
        """
        self._store.require_there()

    def _change(self, decide: Callable[[Lease, float], Lease | None], *, alone: bool = False) -> Lease | None:
        """Read, decide and write; None if the decision is, or if the row changed in between."""
        table = schema.leases
        with self._store.transaction(write=True) as connection:
            found, now = self._read(connection, alone=alone)
            new = decide(found, now)
            if new is None:
                return None
            values = {"holder": new.holder, "epoch": new.epoch, "until": new.until}
            if found == Lease():
                self._store.insert_new(table, [{"role": self._role, "holder": "", "epoch": 0, "until": 0.0}])
            unchanged = (table.c.epoch == found.epoch) & (table.c.until == found.until)
            done = connection.execute(table.update().where(self._mine & unchanged).values(**values))
            return new if done.rowcount == 1 else None

    def _end_hung_sessions(self, hung_s: float) -> None:
        """End this coordinator's sessions that hold locks and have waited that long for their process.

        A lease can be had without it: an error, as of a server that forbids it, is only logged.
        """
        given = {"hung_s": hung_s, "beside": ["", *(f"_{suffix}" for suffix in SUFFIXES)]}
        try:
            with self._store.transaction() as connection:
                if connection.dialect.name != "postgresql":
                    return
                ended = connection.exec_driver_sql(_END_HUNG, given).scalars().all()
        except (Misconfigured, Transient) as error:
            if str(error) != self._why_not_ended:
                self._why_not_ended = str(error)
                log.warning("sessions_not_ended", why=self._why_not_ended)
            return
        if ended:
            log.warning("sessions_ended", why="they held locks, and their processes hang", pids=list(ended))


def fence(role: str, epoch: int) -> Callable[[Any], None]:
    """A check for the end of a writing transaction: no other process has the lease, nor gets it until then.

    The row's key is locked for reading: another process that takes the lease waits for the commit, so that no
    write of an epoch follows one of the next. A renewal changes no key and does not wait: one that did would
    hold the row for the next leader once more if this process is stopped meanwhile.

    Args:
        role: of the lease.
        epoch: of the writer.
    """
    query = (
        sa.select(schema.leases.c.epoch)
        .where(schema.leases.c.role == role)
        .with_for_update(read=True, key_share=True)
    )

    def check(connection: sa.Connection) -> None:
        found = connection.execute(query).scalar_one_or_none()
        if found != epoch:
            raise LeaseLost(f"the lease {role!r} has epoch {found}, ours is {epoch}: nothing was written")

    return check


def shared_fence(role: str, epoch: int, table: LeaseTable, *, same_database: bool) -> SharedFence:
    """The same for tables beside the coordinator's own.

    Args:
        role: of the lease.
        epoch: of the writer.
        table: the lease.
        same_database: their transactions see the lease and can lock its row (PostgreSQL). Files of SQLite
            cannot: a process that is stopped between this check and its commit still commits.
    """

    def check(statements: Statements) -> None:
        if same_database:
            row = statements.execute(
                "SELECT epoch FROM leases WHERE role = ? FOR KEY SHARE", (role,)
            ).fetchone()
            found = None if row is None else row[0]
        else:
            found = table.read()[0].epoch
        if found != epoch:
            raise LeaseLost(f"the lease {role!r} has epoch {found}, ours is {epoch}: nothing was written")

    return check
