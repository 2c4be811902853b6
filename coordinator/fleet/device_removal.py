"""Devices that are forgotten: names that gave way, devices unheard for long, and those the operator names.

``lichen device forget`` leaves a file for a running coordinator, which holds the database; one that does not
run is not needed for it.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from coordinator.admission.quarantine import Quarantine
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.secret_mismatch import SecretMismatchMonitor
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.base import is_name
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.storage.files import remove, write_atomic
from runtime.text import MAX_NAMES

log = structlog.get_logger(__name__)

FOLDER: Final = "forget"
"""Below ``state_dir``: a file for each device that is to be forgotten."""
_FORCE: Final = b"force"
_POLL_S: Final = 3.0
_STALE_S: Final = 3600.0
_MAX_FORGOTTEN_AT_ONCE: Final = 1000
OF_DEVICE: Final = (schema.devices, schema.messages, schema.standing)
"""Tables whose rows of a device go with it. Its updates and refusals stay: they are the history's."""


def ask(state_dir: Path, device: str, *, force: bool) -> None:
    """Have the running coordinator forget a device.

    Raises:
        Transient: the disk is full.
        Misconfigured: the folder is closed to us.
    """
    write_atomic(state_dir / FOLDER / device, _FORCE if force else b"")


def forget_in(store: Database, device: str) -> None:
    """Forget a device in the database of a coordinator that does not run."""
    with store.transaction():
        for table in OF_DEVICE:
            store.remove(table, device=device)


class Forgetting:
    """One service, for ever.

    Args:
        days: who is away and said nothing for so long is forgotten; 0: nobody is.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        roster: DeviceRegistry,
        ledger: WriteBehindBuffer,
        quarantine: Quarantine,
        secrets: SecretMismatchMonitor,
        clock: Clock,
        days: float,
    ) -> None:
        self._folder = state_dir / FOLDER
        self._roster = roster
        self._ledger = ledger
        self._quarantine = quarantine
        self._secrets = secrets
        self._clock = clock
        self._days = days
        self.forgotten = 0
        """Devices since the start."""

    def forget(self, devices: Iterable[str]) -> None:
        """Forget devices; a quarantine outlives that."""
        for device in devices:
            self._roster.forget(device)
            self._secrets.heard(device)
            self._ledger.remove(schema.devices, device=device)
            self._ledger.remove(schema.messages, device=device)
            if self._quarantine.denial(device) is None:
                self._quarantine.forget(device)
            self.forgotten += 1

    async def run(self) -> None:
        """Look for what the operator asks, and now and then for who is gone."""
        stale_at = self._clock.now()
        while True:
            await self._clock.sleep(_POLL_S)
            for device, forced in await asyncio.to_thread(self._asked):
                self._do(device, forced=forced)
            if self._days and self._clock.now() - stale_at >= _STALE_S:
                stale_at = self._clock.now()
                self._forget_stale()

    def _asked(self) -> list[tuple[str, bool]]:
        found = []
        try:
            asked = [file for file in self._folder.iterdir() if is_name(file.name)]  # not one being written
            for file in sorted(asked)[:_MAX_FORGOTTEN_AT_ONCE]:
                forced = file.read_bytes() == _FORCE
                remove(file)
                found.append((file.name, forced))
        except FileNotFoundError:
            pass
        except (LichenError, OSError) as error:  # the next look finds it
            log.warning("forget_not_read", folder=str(self._folder), why=str(error))
        return found

    def _do(self, device: str, *, forced: bool) -> None:
        known = self._roster.get(device)
        if known is not None and known.online and not forced:
            log.warning("device_not_forgotten", device=device, why="it is online")
        elif known is not None:
            self.forget([device])
            log.info("device_forgotten", device=device, why="the operator asked for it")

    def _forget_stale(self) -> None:
        stale = self._roster.stale(self._days)
        self.forget(stale)
        if stale:
            log.info("devices_forgotten", count=len(stale), first=stale[:MAX_NAMES], days=self._days)
