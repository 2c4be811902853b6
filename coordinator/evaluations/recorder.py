"""Takes devices' evaluations, and writes many of them in one transaction."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from coordinator.evaluations import store as tables
from coordinator.evaluations.checks import require_sound
from coordinator.storage.database import Database
from protocol.errors import LichenError
from protocol.tasks.evaluation import DeviceEvaluation
from protocol.tasks.task import LABEL, Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.metrics import MetricFamily, counter, gauge

log = structlog.get_logger(__name__)
MAX_WAITING: Final = 256
"""Reports that wait for a transaction; one is at most ``MAX_METRIC_BYTES`` long."""
_PAUSE_S: Final = 0.5
_RETRY_S: Final = 5.0
_READ_S: Final = 30.0
"""Interval at which the sums are read for Prometheus; another process may have written them."""
PREFIX: Final = "lichen_device_evaluation_"


class EvaluationRecorder:
    """One service, and the handler's part of a report.

    Args:
        store: the tables.
        task: of the fleet.
        most_devices: with a row of one version.
        clock: of the times.
    """

    def __init__(self, store: Database, task: Task, most_devices: int, clock: Clock) -> None:
        self._store = store
        self._task = task
        self._most = most_devices
        self._clock = clock
        self._waiting: dict[tuple[int, str], tuple[float, DeviceEvaluation]] = {}
        self._then: list[Callable[[], None]] = []
        self._forgotten: set[str] = set()
        self._news, self._one = Signal(), asyncio.Lock()
        self._newest: tuple[int, Mapping[str, Any]] | None = None
        self.stored = self.left_out = 0
        """Reports since the start: written; and those of versions that do not exist, or without room."""

    async def record(self, device: str, report: DeviceEvaluation, then: Callable[[], None]) -> None:
        """Take a report; ``then`` is called when it is on disk, or cannot be written now.

        Raises:
            Refused: it is not of this task, or does not agree with itself.
        """
        require_sound(self._task, report)
        key = report.version, device
        if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
            await self._write()
            if len(self._waiting) >= MAX_WAITING:  # the disk is full: the device reports again as it grows
                self.left_out += 1
                then()
                return
        self._waiting[key] = self._clock.wall(), report
        self._then.append(then)
        self._news.set()

    def forget(self, device: str) -> None:
        """A device was removed."""
        self._waiting = {key: one for key, one in self._waiting.items() if key[1] != device}
        self._forgotten.add(device)
        self._news.set()

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await self._news.wait(_READ_S)
            wrote = await self._write()
            await self._clock.sleep(_PAUSE_S if wrote else _RETRY_S)

    async def _write(self) -> bool:
        """Write what waits, and read the newest sums; False if the database refuses."""
        async with self._one:
            batch, self._waiting = self._waiting, {}
            done, self._then = self._then, []
            gone, self._forgotten = self._forgotten, set()
            wrote = True
            try:
                count = await asyncio.to_thread(self._save, batch, gone)
                self.stored += count
                self.left_out += len(batch) - count
                self._newest = await asyncio.to_thread(tables.newest, self._store, self._task)
            except (LichenError, OSError) as error:
                log.warning("evaluations_not_written", reports=len(batch), why=str(error))
                left = {key: one for key, one in batch.items() if key[1] not in self._forgotten}
                self._waiting, self._forgotten = left | self._waiting, gone | self._forgotten
                self._news.set()
                wrote = False
            for then in done:
                then()
            return wrote

    def _save(self, batch: tables.Reports, gone: Iterable[str]) -> int:
        for device in sorted(gone):
            tables.remove(self._store, self._task, device)
        return tables.write(self._store, self._task, batch, self._most) if batch else 0

    def metrics(self) -> Iterable[MetricFamily]:
        """Scores of the newest version that a device reported on; never a series for one device."""
        yield counter(f"{PREFIX}reports", "Evaluations of devices stored since the start", self.stored)
        if self._newest is None:
            return
        version, found = self._newest
        label = found["targets"].get(LABEL, {})
        yield gauge(f"{PREFIX}version", "Newest version that a device has evaluated", version)
        yield gauge(f"{PREFIX}devices", "Devices that have evaluated it", found["devices"])
        yield gauge(f"{PREFIX}windows", "Held-back windows that it was evaluated on", found["windows"])
        for name, words in (("accuracy", "Its accuracy on devices"), ("macro_f1", "Its macro F1 on devices")):
            if label.get(name) is not None:
                yield gauge(f"{PREFIX}{name}", words, label[name])
