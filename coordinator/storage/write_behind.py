"""Write-behind buffer for counted refusals and device states: many messages, one commit.

The rate of messages is up to the devices, so it must not set the rate of syncs: a commit takes everything
that came during the last one, and there are at most ``_A_SECOND`` commits in a second. Limits: a row replaces
one with the same key; once ``MAX_ROWS`` wait, the reader waits for the disk; refusals beyond ``MAX_REFUSALS``
(device, reason) pairs are counted under ``(others)``. ``then`` is called when a row is on disk, or could not
be written now: the message is acknowledged. If the disk is full, the row stays for the next commit.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa
import structlog

from coordinator.storage.database import OTHERS, Database
from protocol.errors import Refused, Transient
from runtime.clock import Clock

log = structlog.get_logger(__name__)

MAX_ROWS: Final = 256
MAX_REFUSALS: Final = 4096
_A_SECOND: Final = 20
_RETRY_S: Final = 1.0
_DETAIL_BYTES: Final = 300

Key = tuple[str, ...]
Row = tuple[sa.Table, dict[str, Any], bool]
"""A table, a row of it or its key, and whether it is removed."""
Refusal = tuple[int, str, float]
"""The count, the last detail, and when it came (Unix seconds)."""


def _cut(detail: str) -> str:
    return detail.encode()[:_DETAIL_BYTES].decode(errors="ignore")


class WriteBehindBuffer:
    """Accepts rows at any rate and writes them at a bounded one. :meth:`save` may run in any thread."""

    def __init__(self, store: Database, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._rows: dict[Key, Row] = {}
        self._refusals: dict[tuple[str, str], Refusal] = {}
        self._then: list[Callable[[], None]] = []
        self._news = asyncio.Event()

    def refused(self, device: str, refused: Refused) -> None:
        """Count a refusal."""
        self._count((device, refused.reason.value), (1, _cut(refused.detail), self._clock.wall()))
        self._news.set()

    def _count(self, key: tuple[str, str], new: Refusal) -> None:
        with self._lock:
            if key not in self._refusals and len(self._refusals) >= MAX_REFUSALS:
                key = (OTHERS, key[1])
            known = self._refusals.get(key, (0, "", 0.0))
            _, detail, wall = max(new, known, key=lambda one: one[2])
            self._refusals[key] = (known[0] + new[0], detail, wall)

    def note(self, table: sa.Table, **values: Any) -> None:
        """As :meth:`put`, without a wait or an answer: for rows whose number the caller bounds."""
        key = (table.name, *(str(values[column.name]) for column in table.primary_key))
        with self._lock:
            self._rows[key] = (table, values, False)
        self._news.set()

    def remove(self, table: sa.Table, **key: Any) -> None:
        """Remove the row with this key soon."""
        name = (table.name, *(str(key[column.name]) for column in table.primary_key))
        with self._lock:
            self._rows[name] = (table, key, True)
        self._news.set()

    async def put(self, table: sa.Table, then: Callable[[], None], **values: Any) -> None:
        """Write this row soon; it replaces the one with the same key."""
        key = (table.name, *(str(values[column.name]) for column in table.primary_key))
        while key not in self._rows and len(self._rows) >= MAX_ROWS:
            await self._write()
        with self._lock:
            self._rows[key] = (table, values, False)
        self._then.append(then)
        self._news.set()

    async def run(self) -> None:
        """Write for ever."""
        written = deque([-1.0] * _A_SECOND, maxlen=_A_SECOND)
        while True:
            await self._news.wait()
            await self._clock.sleep(max(0.0, written[0] + 1.0 - self._clock.now()))
            self._news.clear()
            written.append(self._clock.now())
            await self._write()

    async def _write(self) -> None:
        done, self._then = self._then, []
        try:
            await asyncio.to_thread(self.save)
        except Transient as error:
            log.warning("not_written", why=str(error))
            await self._clock.sleep(_RETRY_S)
            self._news.set()
        for then in done:
            then()

    def save(self) -> None:
        """Write all waiting rows in one commit; also waits for a commit that another thread runs.

        Raises:
            Transient: the disk failed; the rows stay in the buffer.
        """
        with self._saving:
            self._save()

    def _save(self) -> None:
        with self._lock:  # not during the write: the event loop takes this lock, too
            rows, self._rows = self._rows, {}
            refusals, self._refusals = self._refusals, {}
        if not (rows or refusals):
            return
        try:
            with self._store.transaction():
                for table, values, goes in rows.values():
                    if goes:
                        self._store.remove(table, **values)
                    else:
                        self._store.put(table, **values)
                for (device, reason), (count, detail, wall) in refusals.items():
                    self._store.count_refusals(device, reason, count, detail, wall)
        except Transient:
            with self._lock:
                self._rows = rows | self._rows
            for key, refusal in refusals.items():
                self._count(key, refusal)
            raise
