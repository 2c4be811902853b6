"""Which processes accept updates, for ``lichen coordinator status``: each writes regularly that it runs."""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
import structlog

from coordinator.lease.decisions import Lease
from coordinator.lease.table import database_time
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.concurrency.threads import Threads

log = structlog.get_logger(__name__)

EVERY_S: Final = 5.0
LIFE_S: Final = 15.0
"""A process that has written nothing for longer is silent."""
_FORGOTTEN_S: Final = 3600.0
LEAD: Final = "lead"
"""Role of the leader's lease."""
_PREFIX: Final = "ingest/"
_TABLE: Final = schema.leases
_OURS: Final = _TABLE.c.role.startswith(_PREFIX, autoescape=True)


class ProcessHeartbeat:
    """Writes that a process runs. Run :meth:`run`; call :meth:`forget` at the end.

    Args:
        store: of the coordinator.
        name: of this process.
        clock: for the pauses; the rows have the database's time.
        threads: for the database.
    """

    def __init__(self, store: Database, name: str, clock: Clock, threads: Threads) -> None:
        self._store, self._name, self._clock, self._threads = store, name, clock, threads

    async def run(self) -> None:
        """Write it every few seconds, for ever."""
        while True:
            try:
                await self._threads.run(self.note)
            except LichenError as error:  # who follows the rounds reports that the database is away
                log.debug("heartbeat_not_written", why=str(error))
            await self._clock.sleep(EVERY_S)

    def note(self) -> None:
        """Write it now, and remove what was written by processes that ended long ago.

        Raises:
            Transient: the database cannot be written now.
        """
        with self._store.transaction(write=True) as connection:
            now = database_time(connection)
            row = {"holder": self._name, "epoch": 0, "until": now + LIFE_S}
            self._store.put(_TABLE, role=_PREFIX + self._name, **row)
            connection.execute(_TABLE.delete().where(_OURS & (_TABLE.c.until < now - _FORGOTTEN_S)))

    def forget(self) -> None:
        """Remove what was written; an error leaves it for others to remove."""
        try:
            self._store.remove(_TABLE, role=_PREFIX + self._name)
        except LichenError as error:
            log.debug("heartbeat_not_removed", why=str(error))


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The processes of a coordinator, by the database.

    Attributes:
        leader: the lease.
        ingest: name -> Unix seconds until which a process that accepts updates counts as running.
        now: of the database.
    """

    leader: Lease
    ingest: dict[str, float]
    now: float

    @property
    def several(self) -> bool:
        """Whether the coordinator is several processes, or was when the last of them ended."""
        return bool(self.leader.holder or self.ingest)

    @property
    def led(self) -> bool:
        """Whether a process has the lease."""
        return bool(self.leader.holder) and self.leader.until > self.now


def read_cluster(store: Database) -> ClusterView:
    """Read them; the database may be open for reading alone.

    Raises:
        Transient: the database cannot be read now.
    """
    with store.transaction() as connection:
        now = database_time(connection)
        rows = connection.execute(sa.select(_TABLE).where(_OURS | (_TABLE.c.role == LEAD))).mappings().all()
    leader = next((row for row in rows if row["role"] == LEAD), None)
    return ClusterView(
        Lease() if leader is None else Lease(leader["holder"], leader["epoch"], leader["until"]),
        {row["holder"]: row["until"] for row in rows if row["role"] != LEAD},
        now,
    )


def forget_cluster(store: Database) -> None:
    """Forget the processes that ran before: ``serve`` has the tables for itself. The epoch stays.

    Raises:
        Transient: the database cannot be written now.
    """
    if read_cluster(store).several:
        with store.transaction() as connection:
            connection.execute(_TABLE.update().values(holder="", until=0.0))
            connection.execute(_TABLE.delete().where(_OURS))
