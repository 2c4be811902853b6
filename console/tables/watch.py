"""Reads the tables again and again, once for all viewers, and says what has changed."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from console.tables.connection import TablesConnection
from console.words import digest
from coordinator.cli.status import look
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.storage.database import Database
from protocol.errors import LichenError
from runtime.waits import Wait
from runtime.web.events import EventStream

log = structlog.get_logger(__name__)

PERIOD_S: Final = 0.4
_SHARE: Final = 4
"""A reading is followed by a pause of at least so many times its length: a large fleet is read less often."""


@dataclass(frozen=True)
class Picture:
    """What the tables said at one moment.

    Attributes:
        wall: Unix seconds.
        trouble: why they cannot be read now; the rest is what they said before.
        status: as ``lichen coordinator status`` prints it, without its waits.
        waits: what the coordinator waits for.
        revision: changes with everything else but ``wall``.
    """

    wall: float
    trouble: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    revision: str = ""


class TableWatch:
    """Holds the newest picture.

    Args:
        settings: of the coordinator.
        tables: its tables.
        events: hears that a subject has changed, as an event of its name with the revision.
    """

    def __init__(self, settings: CoordinatorSettings, tables: TablesConnection, events: EventStream) -> None:
        self._settings = settings
        self._tables = tables
        self._events = events
        self.picture = Picture(time.time(), "the tables have not been read yet")

    async def run(self) -> None:
        """Read for ever."""
        while True:
            began = time.monotonic()
            await self.read()
            took = time.monotonic() - began
            await asyncio.sleep(max(PERIOD_S, _SHARE * took))

    async def read(self) -> None:
        """Read once."""
        before = self.picture
        picture = await asyncio.to_thread(self._look)
        if picture.trouble and picture.trouble != before.trouble:
            log.warning("tables_not_read", why=picture.trouble)
        self.picture = picture
        self._events.publish({"status": picture.revision})

    def _look(self) -> Picture:
        now = time.time()

        def query(store: Database) -> tuple[dict[str, Any], list[Wait]]:
            return look(store, self._settings, now)

        try:
            status, waits = self._tables.read(query)
        except LichenError as error:
            old = self.picture
            return Picture(now, str(error), old.status, old.waits, digest(str(error)))
        lasting = {key: value for key, value in status.items() if key not in {"now", "why_wall"}}
        return Picture(now, "", status, tuple(waits), digest(lasting, waits))
