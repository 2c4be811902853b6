"""A simulated PostgreSQL server: sessions, row locks, commits, and the faults of a database in a network.

Each session reads what is committed at the moment of its statement (READ COMMITTED). One transaction at a
time holds locks: it takes them with its first write or ``SELECT ... FOR UPDATE | SHARE``, and others wait, so
that transactions that lock what they rely on are serialisable. Those that do not are not: between a read
without a lock and the first write, others commit.

A commit survives every fault: failovers here are to a synchronous standby.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

import sqlalchemy as sa
from sqlalchemy.pool import NullPool, StaticPool

from coordinator.storage.engines import postgres, postgres_look
from coordinator.storage.engines.postgres_address import PostgresSchema
from lichen_lab.simulation.deterministic.cluster.session import ServerDialect, ServerSession, lost, refused
from lichen_lab.simulation.deterministic.machine.clock import EPOCH
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop
from lichen_lab.simulation.deterministic.machine.process_life import LIFE
from lichen_lab.simulation.deterministic.machine.threads import SimThread, running_thread
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario

OBSERVED: Final = "lichen_world"
"""The schema of the coordinator's own tables."""
_LOCK_TIMEOUT_S: Final = 10.0
_IDLE_TIMEOUT_S: Final = 5.0
"""``lock_timeout`` and ``idle_in_transaction_session_timeout`` of the coordinator's sessions."""
_UNACKNOWLEDGED_S: Final = 11.0
"""TCP's keepalive: how long the server holds the locks of a machine without power."""
_WAITS: Final = 0.15
"""Share of statements in threads that take a while."""
_LONG_S: Final = 0.05
_SLOW_S: Final = 6.0
_STORED: Final = 0.5
_LATE: Final = 0.4
"""Of the commits without an answer: which took place, and which are decided later."""


class SimServer:
    """See the module.

    Args:
        folder: of its file.
        loop: the world's.
        scenario: its seed decides what takes how long, and what becomes of a commit without an answer.
        committed: is given each session that has committed a change, and may look at the tables.
        count: counts a fault that came about.
    """

    def __init__(
        self,
        folder: Path,
        loop: SimLoop,
        scenario: Scenario,
        committed: Callable[[ServerSession], None],
        count: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._loop = loop
        self._random = random.Random(f"server {scenario.seed}")  # noqa: S311 - a seed, not a secret
        self._slow, self._far = scenario.store_slow, scenario.ingests
        self._committed, self._count = committed, count
        self.sessions: list[ServerSession] = []
        self._owners: dict[str, tuple[ServerSession, SimThread | None]] = {}
        """Schema -> the session that holds locks, and its thread; None: it is not a thread's."""
        self._waiters: list[SimThread] = []
        self._down_until = self._paused_until = 0.0
        self._apart: dict[str, float] = {}
        """Node -> until when it cannot reach the server."""
        self._losing: set[str] = set()
        """Nodes whose next commit gets no answer."""
        self._dialect = ServerDialect(dbapi=sqlite3)
        self._cache: dict[Any, Any] = {}
        self._outside = sa.create_engine(
            "sqlite://", poolclass=StaticPool, creator=lambda: self._raw(OBSERVED)
        )

    # ---- connections

    def _raw(self, schema: str) -> sqlite3.Connection:
        file = self._folder / f"{schema}.sqlite3"
        raw = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute("PRAGMA synchronous=OFF")
        raw.create_collation("C", lambda one, other: (one > other) - (one < other))
        # The server's clock is true.
        raw.create_function("julianday", 1, lambda _: (EPOCH + self._loop.time()) / 86400.0 + 2440587.5)
        return raw

    def engine_of(self, place: PostgresSchema, *_: object, **__: object) -> sa.Engine:
        """As ``coordinator.storage.engines.postgres_session.engine_of``."""
        pool = NullPool(cast("Any", partial(self._connected, place.name)))
        engine = sa.Engine(pool, self._dialect, sa.make_url("sqlite://"))
        return engine.execution_options(compiled_cache=self._cache)

    def _connected(self, schema: str) -> ServerSession:
        life = LIFE.get()
        node = "" if life is None else life.node
        if self._is_away(node) or (self._paused and running_thread() is None):
            raise lost("connection to the simulated server failed")
        session = ServerSession(self, self._raw(schema), schema, life)
        self.sessions.append(session)
        if life is not None:
            life.on_end.append(partial(self._client_is_gone, session))
        return session

    def _is_away(self, node: str) -> bool:
        return self._loop.time() < max(self._down_until, self._apart.get(node, 0.0))

    @property
    def _paused(self) -> bool:
        return self._loop.time() < self._paused_until

    def stood_still(self, seconds: float) -> bool:
        """Whether it answered nothing at some moment of the last seconds."""
        return self._loop.time() < self._paused_until + seconds

    def _client_is_gone(self, session: ServerSession, _: str) -> None:
        """The process is over. Killed: its system closes the socket. Power cut: silence, and locks stay."""
        session.lost = session.lost or "the process is over"
        if session.life is not None and session.life.power:
            self._later(_UNACKNOWLEDGED_S, self.end, session, "no answer from the client")
        else:
            self.end(session, "the client is gone")

    def end(self, session: ServerSession, why: str) -> None:
        """End a session; its open transaction is undone. Idempotent."""
        session.lost = session.lost or why
        if session in self.sessions:
            self.sessions.remove(session)
            self.undo(session)
            session.raw.close()

    def rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        """What is committed now, for an observer."""
        with self._outside.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    # ---- statements

    def statement(self, session: ServerSession) -> None:
        """A statement, or a commit, is on its way to the server and back."""
        thread = running_thread()
        if thread is not None:
            if (share := self._random.random()) < self._slow and session.node in self._far:
                thread.sleep(_SLOW_S * self._random.random())
            elif share < _WAITS:
                thread.sleep(_LONG_S * self._random.random())
            while self._paused and not session.lost:
                thread.sleep(self._paused_until - self._loop.time())
        elif self._paused:
            self.end(session, "no answer from the server")
        if session.lost:
            raise lost(session.lost)
        session.used += 1

    def lock(self, session: ServerSession) -> None:
        """Give the session the locks that it needs, as soon as no other transaction has them."""
        if self._has_locks(session):
            return
        until, thread = self._loop.time() + _LOCK_TIMEOUT_S, running_thread()
        while (owner := self._owners.get(session.schema)) is not None:
            holder = owner[1]
            if thread is not None and self._loop.time() < until:
                self._waiters.append(thread)
                thread.wake_at(until)
                thread.wait(partial(self._holder, session.schema))
            elif thread is None and holder is not None and not self._loop.is_frozen(holder.life):
                holder.hurry()
            else:
                raise refused("55P03", "canceling statement due to lock timeout")
            if session.lost:
                raise lost(session.lost)
        self._owners[session.schema] = session, thread
        session.raw.execute("BEGIN IMMEDIATE")
        self._later(_IDLE_TIMEOUT_S, self._end_idle, session, session.used)

    def _holder(self, schema: str) -> SimThread | None:
        return self._owners.get(schema, (None, None))[1]

    def _has_locks(self, session: ServerSession) -> bool:
        return self._owners.get(session.schema, (None, None))[0] is session

    def _end_idle(self, session: ServerSession, used: int) -> None:
        if not self._has_locks(session):
            return
        if session.used == used and not self._paused and not session.lingers:
            self._count("store: idle in transaction")
            self.end(session, "terminating connection due to idle-in-transaction timeout")
        else:
            self._later(_IDLE_TIMEOUT_S, self._end_idle, session, session.used)

    def commit(self, session: ServerSession) -> None:
        """Commit what the session wrote."""
        self.statement(session)
        if session.life is not None:
            session.life.moment("before a commit of the server")
        if session.node in self._losing:
            self._losing.remove(session.node)
            self._count("store: commit without an answer")
            self._lose(session)
            raise lost("server closed the connection unexpectedly")
        self._store(session)
        if session.life is not None:
            session.life.moment("after a commit of the server")

    def _lose(self, session: ServerSession) -> None:
        """The answer to a commit does not arrive; it took place, did not, or will be decided later."""
        session.lost, session.lingers = "server closed the connection unexpectedly", True
        self._owners[session.schema] = session, None
        stored, late = self._random.random() < _STORED, self._random.random() < _LATE
        if late:
            self._later(self._random.uniform(0.05, 4.0), self._settle, session, stored)
        else:
            self._settle(session, stored)

    def _settle(self, session: ServerSession, stored: bool) -> None:  # noqa: FBT001 - a callback
        session.lingers = False
        if stored and session in self.sessions:
            self._store(session)
        self.end(session, session.lost)

    def _store(self, session: ServerSession) -> None:
        session.raw.execute("COMMIT")
        self._release(session)
        if session.schema == OBSERVED:
            self._committed(session)
        session.tables.clear()

    def undo(self, session: ServerSession) -> None:
        """Roll the open transaction back."""
        if session.raw.in_transaction:
            session.raw.execute("ROLLBACK")
        session.tables.clear()
        self._release(session)

    def _release(self, session: ServerSession) -> None:
        if self._has_locks(session):
            del self._owners[session.schema]
            waiters, self._waiters = self._waiters, []
            for one in waiters:
                one.wake_now()

    # ---- faults

    def pause(self, seconds: float) -> None:
        """Answer nothing for a while."""
        self._paused_until = max(self._paused_until, self._loop.time() + seconds)

    def fail_over(self, seconds: float) -> None:
        """Break all connections and take none for a while; what is committed stays."""
        self._down_until = max(self._down_until, self._loop.time() + seconds)
        for session in list(self.sessions):
            self.end(session, "terminating connection due to administrator command")

    def part(self, node: str, seconds: float) -> None:
        """Break the connections of one process, and let it not come back for a while."""
        self._apart[node] = self._loop.time() + seconds
        for session in [one for one in self.sessions if one.node == node]:
            self.end(session, "the connection was reset")

    def lose_answer(self, node: str) -> None:
        """Break the connection of a process in the middle of its next commit."""
        self._losing.add(node)

    def clear(self) -> None:
        """End all faults."""
        self._slow = self._down_until = 0.0
        self._paused_until = min(self._paused_until, self._loop.time())
        self._apart.clear()
        self._losing.clear()

    def close(self) -> None:
        """Close the tables."""
        for session in list(self.sessions):
            self.end(session, "the server is closed")
        self._outside.dispose()

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        self._loop.call_later(seconds, call, *args, context=Context())


@contextmanager
def simulated_engines(server: SimServer) -> Iterator[None]:
    """Let the engine for PostgreSQL connect to a simulated server."""
    with (
        patch.object(postgres, "engine_of", server.engine_of),
        patch.object(postgres_look, "engine_of", server.engine_of),
    ):
        yield
