"""The leader's round machine as another process sees it: its state, from its own journal.

The events of the journal are applied with the leader's own functions. The copy is at most ``REFRESH_S`` old;
before an update is refused because of it, it is read again (:meth:`RoundReplica.refresh`).
"""

import asyncio
from typing import Final

import sqlalchemy as sa
import structlog

from coordinator.round_machine import table
from coordinator.round_machine.events import JOURNALED, Checkpoint, Event, RoundState, Rules
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import unpacked
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.concurrency.threads import Threads

log = structlog.get_logger(__name__)

REFRESH_S: Final = 0.5


class RoundReplica:
    """Follows the journal of the round machine. Call :meth:`refresh` once before use, then run :meth:`run`.

    Args:
        store: of the leader, too.
        clock: of the pauses.
        threads: for the database.
        changes: set when the state has changed.
    """

    def __init__(self, store: Database, clock: Clock, threads: Threads, changes: Signal) -> None:
        self._store, self._clock, self._threads, self._changes = store, clock, threads, changes
        self._lock = asyncio.Lock()
        self._rules: Rules | None = None
        self._last = 0
        self.state = RoundState()
        self.trouble = ""
        """Why the journal cannot be read now; empty if it can."""

    async def run(self) -> None:
        """Follow the journal, for ever."""
        while True:
            await self._clock.sleep(REFRESH_S)
            try:
                await self.refresh()
            except LichenError as error:
                if not self.trouble:
                    log.warning("rounds_not_read", why=str(error))
                self.trouble = str(error)
            else:
                self.trouble = ""

    async def refresh(self) -> bool:
        """Apply the events that were written since; whether there were any.

        Raises:
            Transient: the database cannot be read now.
        """
        async with self._lock:
            events = await self._threads.run(self._read)
            for seq, now, event in events:
                self._last = seq
                if isinstance(event, Checkpoint):
                    self.state, self._rules = event.state, event.rules
                elif self._rules is not None:  # else the first checkpoint is still to come
                    self.state, _ = table.apply(self._rules, self.state, event, now)
            if events:
                self._changes.set()
            return bool(events)

    def _read(self) -> list[tuple[int, float, Event | Checkpoint]]:
        """Newer events, from the last checkpoint among them on."""
        table = schema.events
        rows = self._store.rows(sa.select(table).where(table.c.seq > self._last).order_by(table.c.seq))
        starts = [place for place, row in enumerate(rows) if row["event"].get("type") == "checkpoint"]
        rows = rows[starts[-1] :] if starts else rows
        return [(row["seq"], row["now"], JOURNALED.validate_python(unpacked(row["event"]))) for row in rows]
