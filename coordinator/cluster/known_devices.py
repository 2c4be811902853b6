"""The device registry as a process sees it that accepts updates: the rows that the leader writes."""

from typing import Final

import sqlalchemy as sa
import structlog

from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.concurrency.threads import Threads

log = structlog.get_logger(__name__)

FOLLOW_S: Final = 5.0
_OVERLAP_S: Final = 60.0
"""Rows are written later than their time says, and by machines whose clocks differ."""
_AGAIN_S: Final = 1.0
"""A device that is not registered is looked up at most once in this time."""
_MAX_MISSED: Final = 10_000


class KnownDevices:
    """Which devices are registered. Call :meth:`open`, then run :meth:`run`.

    A device that the leader forgets stays known here until the process ends; its updates then count only if
    it was selected.

    Args:
        store: of the leader, too.
        clock: the time.
        threads: for the database.
    """

    def __init__(self, store: Database, clock: Clock, threads: Threads) -> None:
        self._store, self._clock, self._threads = store, clock, threads
        self._known: set[str] = set()
        self._newest = 0.0
        self._missed: dict[str, float] = {}

    def __contains__(self, device: object) -> bool:
        return device in self._known

    def contributed(self, device: str) -> None:
        """Nothing: the leader notes it when it counts the update."""

    def touch(self, device: str) -> None:
        """Nothing: the leader hears each device's states."""

    async def open(self) -> None:
        """Read all devices.

        Raises:
            Transient: the database cannot be read now.
        """
        await self._threads.run(self._follow)

    async def run(self) -> None:
        """Read new devices, for ever."""
        while True:
            await self._clock.sleep(FOLLOW_S)
            try:
                await self._threads.run(self._follow)
            except LichenError as error:  # the next round says so, too
                log.debug("devices_not_read", why=str(error))

    def _follow(self) -> None:
        table = schema.devices
        query = sa.select(table.c.device, table.c.wall).where(table.c.wall >= self._newest - _OVERLAP_S)
        for row in self._store.rows(query):
            self._known.add(str(row["device"]))
            self._newest = max(self._newest, float(row["wall"]))

    async def look_up(self, device: str) -> None:
        """Read one device that is not known yet.

        Raises:
            Transient: the database cannot be read now.
        """
        now = self._clock.now()
        if device in self._known or now - self._missed.get(device, now - _AGAIN_S) < _AGAIN_S:
            return
        name = schema.devices.c.device
        if await self._threads.run(self._store.rows, sa.select(name).where(name == device)):
            self._known.add(device)
            self._missed.pop(device, None)
            return
        if len(self._missed) >= _MAX_MISSED:
            self._missed.clear()
        self._missed[device] = now
