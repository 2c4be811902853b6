"""Receives log lines of devices (``up/log``): only those that an operator asked for are stored."""

import asyncio
import math
from collections.abc import Container
from typing import Final

import structlog

from coordinator.diagnosis import device_logs
from coordinator.storage.engines.shared_tables import SharedTables
from coordinator.storage.location import Location
from protocol.errors import Reason, Refused
from protocol.log_lines import MAX_LOG_BYTES, LogLines
from protocol.messages import decode
from protocol.topics import Route
from runtime.clock import Clock
from runtime.mqtt.link import Message

log = structlog.get_logger(__name__)

_LOOK_S: Final = 0.5
"""The tables are read at most so often, whatever devices send: an unasked answer costs a look into a set."""


class LogReceiver:
    """Handles the payloads of ``up/log``.

    Args:
        location: of the tables.
        roster: the registered devices; answers of others are dropped.
        clock: the time.
    """

    def __init__(self, location: Location, roster: Container[object], clock: Clock) -> None:
        self._location = location
        self._roster = roster
        self._clock = clock
        self._tables: SharedTables | None = None
        self._one = asyncio.Lock()
        self._asked: frozenset[str] = frozenset()
        self._looked_at = -math.inf

    async def on_log(self, route: Route, message: Message) -> bool:
        """Store an answer that was asked for; drop any other.

        Raises:
            Refused: too large, malformed, or another device's.
            Transient: the disk is full; the answer is lost, and the operator asks again.
        """
        device = route.device or ""
        if len(message.payload) > MAX_LOG_BYTES:
            words = f"log lines of {len(message.payload)} bytes, at most {MAX_LOG_BYTES}"
            raise Refused(Reason.TOO_LARGE, words)
        if device not in self._roster:
            return False
        async with self._one:
            if self._clock.now() - self._looked_at >= _LOOK_S:
                try:
                    self._asked = await asyncio.to_thread(self._look)
                finally:  # also where the tables are away: each look may wait for them
                    self._looked_at = self._clock.now()
            if device not in self._asked:
                return False
            answer = decode(message.payload, LogLines)
            if answer.device != device:
                words = f"the topic is {device}'s, the message says {answer.device}"
                raise Refused(Reason.WRONG_DEVICE, words)
            self._asked -= {device}
            if await asyncio.to_thread(self._store, answer):
                log.info("device_logs_received", device=device, lines=len(answer.lines))
        return False

    def _opened(self) -> SharedTables | None:
        """The tables; None if nobody ever asked."""
        if self._tables is None and self._location.has(device_logs.DEVICE_LOGS):
            self._tables = self._location.shared(device_logs.DEVICE_LOGS)
        return self._tables

    def _look(self) -> frozenset[str]:
        tables = self._opened()
        return frozenset() if tables is None else device_logs.asked_devices(tables, self._clock.wall())

    def _store(self, answer: LogLines) -> bool:
        tables = self._opened()
        return tables is not None and device_logs.store(tables, answer, self._clock.wall())

    def close(self) -> None:
        """Close the tables. Idempotent."""
        if self._tables is not None:
            self._tables.close()
            self._tables = None
