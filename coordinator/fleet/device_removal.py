"""Removal of devices: replaced names, devices silent for long, and those that the operator names.

``lichen device forget`` leaves a file for a running coordinator, which holds the database; without a running
one it edits the database itself.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from coordinator.admission.quarantine import Quarantine
from coordinator.evaluations import store as evaluation_tables
from coordinator.evaluations.recorder import EvaluationRecorder
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.secret_mismatch import SecretMismatchMonitor
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.write_behind import WriteBehindBuffer
from coordinator.telemetry.recorder import TelemetryRecorder
from protocol.base import is_name
from protocol.errors import LichenError
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.storage.files import remove, write_atomic
from runtime.text import MAX_NAMES

log = structlog.get_logger(__name__)

FOLDER: Final = "forget"
"""Below ``state_dir``: a file for each device to be removed."""
_FORCE: Final = b"force"
_POLL_S: Final = 3.0
_STALE_S: Final = 3600.0
_MAX_FORGOTTEN_AT_ONCE: Final = 1000
_REPORTS: Final = (schema.devices, schema.messages)
OF_DEVICE: Final = (*_REPORTS, schema.standing, schema.telemetry, schema.telemetry_history)
"""Tables whose rows of a device are removed with it. Its updates and refusals stay: they are history."""


def ask(state_dir: Path, device: str, *, force: bool) -> None:
    """Have the running coordinator remove a device.

    Raises:
        Transient: the disk is full.
        Misconfigured: the folder denies access.
    """
    write_atomic(state_dir / FOLDER / device, _FORCE if force else b"")


def forget_in(store: Database, device: str) -> None:
    """Remove a device from the database of a coordinator that does not run."""
    with store.transaction(write=True):
        if (known := store.get_meta("task")) is not None:
            evaluation_tables.remove(store, Task.model_validate_json(known), device)
        for table in OF_DEVICE:
            store.remove(table, device=device)


@dataclass(eq=False, repr=False, kw_only=True)
class Forgetting:
    """A service that removes devices.

    Args:
        days: devices that are offline and silent for this long are removed; 0: none.
    """

    state_dir: Path
    roster: DeviceRegistry
    ledger: WriteBehindBuffer
    quarantine: Quarantine
    secrets: SecretMismatchMonitor
    telemetry: TelemetryRecorder
    evaluations: EvaluationRecorder
    clock: Clock
    days: float

    def __post_init__(self) -> None:
        self._folder = self.state_dir / FOLDER
        self.forgotten = 0
        """Devices removed since the start."""

    def forget(self, devices: Iterable[str]) -> None:
        """Remove devices; their quarantine stays."""
        for device in devices:
            self.roster.forget(device)
            self.secrets.heard(device)
            self.telemetry.forget(device)
            self.evaluations.forget(device)
            for table in _REPORTS:
                self.ledger.remove(table, device=device)
            if self.quarantine.denial(device) is None:
                self.quarantine.forget(device)
            self.forgotten += 1

    async def run(self) -> None:
        """Look for requests of the operator, and at intervals for silent devices."""
        stale_at = self.clock.now()
        while True:
            await self.clock.sleep(_POLL_S)
            for device, forced in await asyncio.to_thread(self._asked):
                self._do(device, forced=forced)
            if self.days and self.clock.now() - stale_at >= _STALE_S:
                stale_at = self.clock.now()
                self._forget_stale()

    def _asked(self) -> list[tuple[str, bool]]:
        found = []
        try:
            asked = [
                file for file in self._folder.iterdir() if is_name(file.name)
            ]  # not one that is being written
            for file in sorted(asked)[:_MAX_FORGOTTEN_AT_ONCE]:
                forced = file.read_bytes() == _FORCE
                remove(file)
                found.append((file.name, forced))
        except FileNotFoundError:
            pass
        except (LichenError, OSError) as error:  # the next pass finds it
            log.warning("forget_not_read", folder=str(self._folder), why=str(error))
        return found

    def _do(self, device: str, *, forced: bool) -> None:
        known = self.roster.get(device)
        if known is not None and known.online and not forced:
            log.warning("device_not_forgotten", device=device, why="it is online")
        elif known is not None:
            self.forget([device])
            log.info("device_forgotten", device=device, why="the operator asked for it")

    def _forget_stale(self) -> None:
        stale = self.roster.stale(self.days)
        self.forget(stale)
        if stale:
            log.info("devices_forgotten", count=len(stale), first=stale[:MAX_NAMES], days=self.days)
