"""The connection that a session uses: paho in production, a simulated one in the simulation."""

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
    """The message that the broker publishes if the connection ends without a DISCONNECT."""

    topic: str
    payload: bytes
    retain: bool = True
    qos: int = 1


@dataclass(frozen=True)
class ConnectOptions:
    """Client id, credentials and options of a connection."""

    client_id: str
    will: Will | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True)
class Arrival:
    """An incoming PUBLISH. ``topic`` is None if it is not UTF-8; ``acknowledge`` works from any thread."""

    topic: str | None
    payload: bytes
    retain: bool
    qos: int
    wire_bytes: int
    acknowledge: Callable[[], None]


class Events(Protocol):
    """Events of a connection, called in the event loop; none before its ``dial`` or after its ``close``."""

    def connected(self, present: bool, reason: ReasonCode, limits: Any) -> None:  # noqa: FBT001 - a flag of CONNACK
        """CONNACK came; ``limits`` may have attributes such as ``MaximumPacketSize``."""

    def lost(self, from_broker: bool, reason: ReasonCode) -> None:  # noqa: FBT001 - who ended it
        """The connection is over."""

    def acknowledged(self, mid: int, reason: ReasonCode) -> None:
        """PUBACK came (QoS 0: the packet was written)."""

    def subscribed(self, mid: int, reasons: list[ReasonCode]) -> None:
        """SUBACK came."""

    def arrived(self, arrival: Arrival) -> None:
        """A message came, perhaps in a network thread: hand it over and return."""


class Connection(Protocol):
    """One connection to a broker, without reconnects. In one event loop: ``dial`` once, ``close`` once."""

    @property
    def closed_by_peer(self) -> bool:
        """Whether the broker ended the TCP connection in order, and not by RST."""

    @property
    def dead(self) -> bool:
        """Whether it has ended, perhaps without a call of :meth:`Events.lost`."""

    def dial(self) -> asyncio.Future[None]:
        """Start to connect; the future ends with the TCP or TLS connection, or ``ConnectFailed``."""

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> int:
        """Pass on a packet; returns its id.

        Raises:
            Transient: the socket is closed.
        """

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> int:
        """Pass on a SUBSCRIBE of all filters; returns its id.

        Raises:
            ConnectFailed: the socket is closed.
        """

    async def close(self) -> None:
        """Send DISCONNECT if possible, and end the connection in any case."""


Connect = Callable[[MqttSettings, ConnectOptions, int, Events], Connection]
"""Makes a connection; the number is its Receive Maximum."""


class AckOrder:
    """Acknowledges QoS 1 messages in order of arrival, in whatever order they are handled (MQTT 5, 4.6)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[list[Any]] = deque()  # [sends the PUBACK, handled]
        self.closed = False

    def expect(self, send: Callable[[], object]) -> Callable[[], None]:
        """A message came, and ``send`` sends its PUBACK; returns the function to call when it is handled."""
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
    """End a future with an error unless it has ended; perhaps nobody waits for it any more."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def succeed(future: asyncio.Future[None]) -> None:
    """Set the result of a future unless it has ended."""
    if not future.done():
        future.set_result(None)
