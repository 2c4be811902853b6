"""The bounded queue from paho's network thread to the event loop."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

_ACK_LOCK = threading.Lock()


@dataclass(slots=True)
class Message:
    """A message that arrived.

    Each must be acknowledged in the end, even if it is refused: acknowledgements are sent in the order of
    arrival (MQTT 5, 4.6), so a missing one holds up all later ones.
    """

    topic: str
    payload: bytes
    retain: bool = False
    _acknowledge: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    _again: Callable[[], bool] | None = field(default=None, repr=False, compare=False)
    arrived: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """Monotonic seconds at which the network thread received it, however late the event loop is."""

    def ack(self) -> None:
        """Acknowledge that it is durably handled; the broker may drop it. Idempotent, from any thread."""
        with _ACK_LOCK:
            acknowledge, self._acknowledge = self._acknowledge, None
        if acknowledge is not None:
            acknowledge()

    @property
    def comes_again(self) -> bool:
        """Whether its connection ended before the acknowledgement: the broker will deliver it again."""
        return self._again is not None and self._again()


_OVERHEAD_BYTES: Final = 1024
"""Bytes that a queued message takes besides its payload."""


class Inbox:
    """At most ``limit`` messages, or more while all together take no more than ``spare_bytes``.

    If it is full, :meth:`offer` returns False and the caller drops the message without ack. The spare room is
    for brokers that exceed our Receive Maximum: once the first of many messages is acknowledged, Mosquitto
    2.0.11 sends all that it has queued, and a link that dropped them would reconnect for every few.
    """

    def __init__(self, limit: int, spare_bytes: int = 0) -> None:
        self.limit = limit
        self._spare_bytes = spare_bytes
        self._bytes = 0
        self._items: deque[Message] = deque()
        self._lock = threading.Lock()
        self._filled = asyncio.Event()
        self._announced = False
        """Whether :attr:`_filled` is set or on its way: a call into the loop costs more than a message."""

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, message: Message, loop: asyncio.AbstractEventLoop) -> bool:
        """Add a message from the network thread; False if there is no room."""
        with self._lock:
            if len(self._items) >= self.limit and self._bytes + _size(message) > self._spare_bytes:
                return False
            self._items.append(message)
            self._bytes += _size(message)
            first, self._announced = not self._announced, True
        if first:
            post(loop, self._filled.set)
        return True

    def forget_repeated(self) -> int:
        """Drop messages that the broker delivers again on a session's new connection; returns how many."""
        with self._lock:
            remaining = [m for m in self._items if not m.comes_again]
            gone = len(self._items) - len(remaining)
            self._items = deque(remaining)
            self._bytes = sum(map(_size, remaining))
        return gone

    async def stream(self) -> AsyncIterator[Message]:
        """Messages in order of arrival, without end. One consumer."""
        while True:
            with self._lock:
                self._filled.clear()
                self._announced = False
            while True:
                with self._lock:
                    message = self._items.popleft() if self._items else None
                    self._bytes -= 0 if message is None else _size(message)
                if message is None:
                    break
                yield message
            await self._filled.wait()


def _size(message: Message) -> int:
    return len(message.payload) + _OVERHEAD_BYTES


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    """``call_soon_threadsafe``; a closed loop is no error of the calling thread."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
