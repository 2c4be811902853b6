"""What pages read of the tables, once for all viewers."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast

from console.tables.connection import TablesConnection
from console.tables.watch import TableWatch
from coordinator.storage.database import Database
from protocol.errors import LichenError, Refused, Transient

T = TypeVar("T")
_MOST: Final = 64
"""Readings that are held, the last used ones."""
_AT_ONCE: Final = 2
"""Readings at a time: the watch of the tables takes turns with them."""
_SHARE: Final = 4
_LONGEST_S: Final = 2.0
"""A reading is made again after a pause of ``_SHARE`` times its length, or so long."""


@dataclass(frozen=True)
class SubjectReading(Generic[T]):
    """What was read. ``value``: None if nothing ever was; ``trouble``: why it is not as of now."""

    value: T | None
    trouble: str = ""

    def require(self) -> T:
        """What the query found, as of now.

        Raises:
            Transient: it cannot be read now.
        """
        if self.trouble:
            raise Transient(self.trouble)
        return cast("T", self.value)


@dataclass
class _Slot:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    value: Any = None
    revision: str | None = None
    at: float = 0.0
    took: float = 0.0


class SharedReadings:
    """Reads a query once for each revision of its subject, whoever asks for it.

    Args:
        tables: the coordinator's.
        watch: knows the revisions.
    """

    def __init__(self, tables: TablesConnection, watch: TableWatch) -> None:
        self._tables = tables
        self._watch = watch
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @property
    def held(self) -> int:
        """How many readings are held."""
        return len(self._slots)

    async def get(self, subject: str, key: Hashable, query: Callable[[Database], T]) -> SubjectReading[T]:
        """What a query reads.

        Args:
            subject: of ``console.tables.marks``: what it reads changes with its revision alone.
            key: of the query and its arguments.
            query: reads.
        """
        slot = self._slots.setdefault((subject, key), _Slot())
        self._slots.move_to_end((subject, key))
        while len(self._slots) > _MOST:
            self._slots.popitem(last=False)
        async with slot.lock:
            revision = self._watch.picture.revisions.get(subject)
            if slot.revision is not None and slot.revision == revision:
                return SubjectReading(slot.value)
            if slot.revision is not None:
                pause = min(_LONGEST_S, _SHARE * slot.took) - (time.monotonic() - slot.at)
                await asyncio.sleep(max(0.0, pause))
                revision = self._watch.picture.revisions.get(subject)
            return await self._read(slot, revision, query)

    async def _read(
        self, slot: _Slot, revision: str | None, query: Callable[[Database], T]
    ) -> SubjectReading[T]:
        async with self._turns:
            began = time.monotonic()
            try:
                value = await asyncio.to_thread(self._tables.read, query)
            except LichenError as error:
                if isinstance(error, Refused):
                    raise
                slot.revision = None
                return SubjectReading(slot.value, str(error))
            slot.value, slot.revision = value, revision
            slot.at = time.monotonic()
            slot.took = slot.at - began
            return SubjectReading(value)
