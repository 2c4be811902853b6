"""What may be written late: counted refusals, and what devices say of themselves.

How often peers send is theirs to decide, so it must not decide how often the disk is synced: all that came
within ``every_s`` is one commit. Rules of the bounds: rows replace those of the same key; once ``MAX_ROWS``
wait, the reader waits for the disk; refusals beyond ``MAX_REFUSALS`` (device, reason) pairs are counted under
``(others)``. A SIGKILL loses at most that interval: states are retained by the broker and said again, counts
and metrics are for people.
"""

import asyncio
import threading
from typing import Any, Final

import sqlalchemy as sa
import structlog

from coordinator.store import OTHERS, Store
from protocol.errors import Refused, Transient
from runtime.clock import Clock

log = structlog.get_logger(__name__)

MAX_ROWS: Final = 256
MAX_REFUSALS: Final = 4096
_EVERY_S: Final = 1.0
_DETAIL: Final = 500

Key = tuple[str, ...]
Row = tuple[sa.Table, dict[str, Any]]
Refusal = tuple[int, str, float]
"""How many, the last one's words, and when (unix seconds)."""


class Ledger:
    """Takes at any rate, writes at one. :meth:`save` may run in any thread."""

    def __init__(self, store: Store, clock: Clock, every_s: float = _EVERY_S) -> None:
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._lock = threading.Lock()
        self._rows: dict[Key, Row] = {}
        self._refusals: dict[tuple[str, str], Refusal] = {}

    def refused(self, device: str, refused: Refused) -> None:
        """Count a refusal."""
        self._count((device, refused.reason.value), (1, refused.detail[:_DETAIL], self._clock.wall()))

    def _count(self, key: tuple[str, str], new: Refusal) -> None:
        with self._lock:
            if key not in self._refusals and len(self._refusals) >= MAX_REFUSALS:
                key = (OTHERS, key[1])
            known = self._refusals.get(key, (0, "", 0.0))
            _, detail, wall = max(new, known, key=lambda one: one[2])
            self._refusals[key] = (known[0] + new[0], detail, wall)

    async def put(self, table: sa.Table, **values: Any) -> None:
        """Write this row soon; it overwrites the one with the same key.

        Raises:
            Transient: too much waits already, and the disk takes none of it.
        """
        key = (table.name, *(str(values[column.name]) for column in table.primary_key))
        if key not in self._rows and len(self._rows) >= MAX_ROWS:
            await asyncio.to_thread(self.save)
        with self._lock:
            self._rows[key] = (table, values)

    async def run(self) -> None:
        """Write for ever, at intervals."""
        while True:
            await self._clock.sleep(self._every_s)
            try:
                await asyncio.to_thread(self.save)
            except Transient as error:
                log.warning("not_written", why=str(error))

    def save(self) -> None:
        """Write all that waits, in one commit.

        Raises:
            Transient: the disk did not take it; it waits on.
        """
        with self._lock:  # never while the disk is written: the event loop takes this lock too
            rows, self._rows = self._rows, {}
            refusals, self._refusals = self._refusals, {}
        if not (rows or refusals):
            return
        try:
            with self._store.transaction():
                for table, values in rows.values():
                    self._store.put(table, **values)
                for (device, reason), (count, detail, wall) in refusals.items():
                    self._store.count_refusals(device, reason, count, detail, wall)
        except Transient:
            with self._lock:
                self._rows = rows | self._rows
            for key, refusal in refusals.items():
                self._count(key, refusal)
            raise
