"""What a session needs of the connection that carries it: paho in the field, a simulated one in a world."""

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paho.mqtt.reasoncodes import ReasonCode

from runtime.settings.load import MqttSettings


@dataclass(frozen=True)
class Will:
    """What the broker publishes for us when the connection ends without a goodbye."""

    topic: str
    payload: bytes
    retain: bool = True
    qos: int = 1


@dataclass(frozen=True)
class ConnectOptions:
    """Who connects, and how it shows that."""

    client_id: str
    will: Will | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Arrival:
    """A PUBLISH that came in. ``topic`` is None when it is not UTF-8; ``acknowledge``: from any thread."""

    topic: str | None
    payload: bytes
    retain: bool
    qos: int
    wire_bytes: int
    acknowledge: Callable[[], None]


class Events(Protocol):
    """What a connection reports, in the event loop; nothing before its ``dial`` and after its ``close``."""

    def connected(self, present: bool, reason: ReasonCode, limits: Any) -> None:  # noqa: FBT001 - a flag of CONNACK
        """CONNACK came; ``limits`` may have ``MaximumPacketSize`` and the like as attributes."""

    def lost(self, from_broker: bool, reason: ReasonCode) -> None:  # noqa: FBT001 - who ended it
        """The connection is over."""

    def acknowledged(self, mid: int, reason: ReasonCode) -> None:
        """PUBACK came (QoS 0: the packet is written)."""

    def subscribed(self, mid: int, reasons: list[ReasonCode]) -> None:
        """SUBACK came."""

    def arrived(self, arrival: Arrival) -> None:
        """A message came. Perhaps in a network thread: hand over and return."""


class Connection(Protocol):
    """One connection to a broker, never reconnected. In one event loop: ``dial`` once, ``close`` once."""

    @property
    def closed_by_peer(self) -> bool:
        """The broker ended the TCP connection in order, and not by RST."""

    @property
    def dead(self) -> bool:
        """It is over, and :meth:`Events.lost` may never tell."""

    def dial(self) -> asyncio.Future[None]:
        """Begin to connect; the future ends with the TCP or TLS connection, or ``ConnectFailed``."""

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> int:
        """Hand a packet over; returns its id.

        Raises:
            Transient: the socket is closed.
        """

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> int:
        """Hand a SUBSCRIBE of all filters over; returns its id.

        Raises:
            ConnectFailed: the socket is closed.
        """

    async def close(self) -> None:
        """Say goodbye where possible, and end it in any case."""


Connect = Callable[[MqttSettings, ConnectOptions, int, Events], Connection]
"""Makes a connection; the number is our Receive Maximum."""


class AckOrder:
    """Acknowledges QoS 1 arrivals in their order, whatever order they are handled in (MQTT 5, 4.6)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[list[Any]] = deque()  # [sends the PUBACK, handled]
        self.closed = False

    def expect(self, send: Callable[[], object]) -> Callable[[], None]:
        """A message came, and ``send`` sends its PUBACK; returns what to call when it is handled."""
        entry = [send, False]
        with self._lock:
            self._waiting.append(entry)
        return lambda: self._handled(entry)

    def _handled(self, entry: list[Any]) -> None:
        with self._lock:
            entry[1] = True
            while self._waiting and self._waiting[0][1]:
                send = self._waiting.popleft()[0]
                if not self.closed:
                    send()


def no_ack() -> None:
    """QoS 0 has no acknowledgement."""


def fail(future: asyncio.Future[None], error: Exception) -> None:
    """End a future with an error, unless it has ended; nobody need be waiting any more."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def succeed(future: asyncio.Future[None]) -> None:
    """End a future, unless it has ended."""
    if not future.done():
        future.set_result(None)
