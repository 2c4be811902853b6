"""Stores what devices report about themselves: the newest report of each, and its thinned history."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import sqlalchemy as sa
import structlog

from coordinator.config.coordinator import DeviceSettings
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.write_behind import WriteBehindBuffer
from coordinator.telemetry.distribution import PREFIX, FleetDistribution
from coordinator.telemetry.history import LONGEST_STEP_S, added, due_in_s, flat
from protocol.errors import LichenError
from protocol.telemetry import Telemetry
from runtime.clock import Clock
from runtime.metrics import MetricFamily, counter

log = structlog.get_logger(__name__)

_POLL_S: Final = 2.0
_AT_ONCE: Final = 256
"""Histories that one transaction writes."""
_MOST_DEVICES: Final = 100_000


class TelemetryRecorder:
    """One service, and the handler's part of a report.

    Args:
        store: the tables.
        ledger: writes the newest reports.
        modalities: of the task; others are left out.
        settings: when a device counts as silent, and how many have a history; others have the newest report.
        clock: of the times.
    """

    def __init__(
        self,
        store: Database,
        ledger: WriteBehindBuffer,
        modalities: Iterable[str],
        settings: DeviceSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._modalities = frozenset(modalities)
        self._histories = settings.histories
        self._clock = clock
        self._fleet = FleetDistribution(sorted(self._modalities), settings.silent_s, _MOST_DEVICES)
        self._waiting: dict[str, tuple[float, Mapping[str, float]]] = {}
        """Points to be added: Unix seconds and values."""
        self._due: dict[str, float] = {}
        """Of the devices with a history, when it takes its next point (monotonic seconds)."""
        self.reports = 0

    async def record(self, device: str, report: Telemetry, then: Callable[[], None]) -> None:
        """Take a report; ``then`` is called when it is on disk, or cannot be written now."""
        wall, now, values = self._clock.wall(), self._clock.now(), flat(report, self._modalities)
        self.reports += 1
        self._fleet.put(device, values, now)
        if device not in self._due and len(self._due) < self._histories:
            self._due[device] = now
        if now >= self._due.get(device, math.inf):
            self._waiting[device] = wall, values
        await self._ledger.put(schema.telemetry, then, device=device, wall=wall, report=values)

    async def run(self) -> None:
        """Write histories for ever."""
        await self._open()
        while True:
            await self._clock.sleep(_POLL_S)
            self._fleet.expire(self._clock.now())
            while self._waiting:
                batch = {name: self._waiting.pop(name) for name in list(self._waiting)[:_AT_ONCE]}
                try:
                    waits = await asyncio.to_thread(self._write, batch)
                    now = self._clock.now()
                    self._due |= {device: now + wait for device, wait in waits.items() if device in self._due}
                except (LichenError, OSError) as error:
                    log.warning("telemetry_not_written", devices=len(batch), why=str(error))
                    known = {name: point for name, point in batch.items() if name in self._due}
                    self._waiting = known | self._waiting  # without devices that were removed meanwhile
                    break

    async def _open(self) -> None:
        """Which devices have a history; their next point is known when it is read."""
        table = schema.telemetry_history
        found = sa.select(table.c.device).limit(self._histories)
        try:
            rows = await asyncio.to_thread(self._store.rows, found)
        except LichenError as error:
            log.warning("telemetry_not_read", why=str(error))
            return
        self._due = {row["device"]: -math.inf for row in rows} | self._due

    def _write(self, batch: Mapping[str, tuple[float, Mapping[str, float]]]) -> dict[str, float]:
        """Add a point to each history in one transaction; in how many seconds each takes its next."""
        table = schema.telemetry_history
        # Locked: in a cluster another process may add a point of the same device.
        asked = sa.select(table).where(table.c.device.in_(sorted(batch))).with_for_update()
        changed, waits = [], {}
        with self._store.transaction(write=True):
            known = {row["device"]: row["history"] for row in self._store.rows(asked)}
            for device, (wall, values) in sorted(batch.items()):
                history = known.get(device) or {}
                if not due_in_s(history, wall):
                    history = added(history, wall, values)
                    changed.append({"device": device, "history": history})
                waits[device] = min(LONGEST_STEP_S, due_in_s(history, wall + 1e-3))
            self._store.put_all(table, changed)
        return waits

    def forget(self, device: str) -> None:
        """A device was removed."""
        self._fleet.drop(device)
        self._waiting.pop(device, None)
        self._due.pop(device, None)
        for table in (schema.telemetry, schema.telemetry_history):
            self._ledger.remove(table, device=device)

    def metrics(self) -> Iterable[MetricFamily]:
        """The fleet's distributions, and how many reports came."""
        yield counter(f"{PREFIX}reports", "Reports of devices about themselves since the start", self.reports)
        yield from self._fleet.metrics()
