"""The coordinator's view of the MQTT link; ``runtime.mqtt.link.Link`` implements it, tests have their own."""

from collections.abc import AsyncIterator
from typing import Final, Protocol

from protocol.base import Wire
from protocol.messages import encode
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.mqtt.link import LinkCounters, Message, OnConnect, WillNow

_RETAINED: Final = frozenset({Kind.MODEL})
"""Message kinds to one device that stay true until replaced: the broker retains them."""


class MessagePublisher(Protocol):
    """Publishing, and the limit of one publish."""

    @property
    def connected(self) -> bool:
        """Whether the broker is connected."""

    @property
    def why(self) -> str:
        """The state of the link, as text."""

    @property
    def since(self) -> float:
        """When ``why`` began, Unix seconds."""

    @property
    def until(self) -> float | None:
        """Time of the next attempt, Unix seconds."""

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits a packet."""

    @property
    def counters(self) -> LinkCounters:
        """Bytes so far."""

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Returns at PUBACK; raises ``Transient`` if that does not come."""


class RunningLink(MessagePublisher, Protocol):
    """A link that the daemon runs."""

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Stay connected for ever; ``on_connect`` runs after each connect, ``will`` before it."""

    def messages(self) -> AsyncIterator[Message]:
        """Arriving messages; each must be acknowledged."""


class Sender:
    """Sends control messages in one fleet."""

    def __init__(self, link: MessagePublisher, fleet: str, timeout_s: float = 10.0) -> None:
        self.link = link
        self.fleet = fleet
        self._timeout_s = timeout_s

    async def to_device(self, device: str, kind: Kind, message: Wire) -> None:
        """Publish to one device, a pointer retained; raises ``Transient`` if the broker refuses it."""
        topic, retain = device_topic(self.fleet, device, kind), kind in _RETAINED
        await self.link.publish(topic, encode(message), retain=retain, timeout_s=self._timeout_s)

    async def clear(self, device: str, kind: Kind) -> None:
        """Clear a retained message of one device; raises ``Transient`` if the broker does not accept it."""
        topic = device_topic(self.fleet, device, kind)
        await self.link.publish(topic, b"", retain=True, timeout_s=self._timeout_s)

    async def broadcast(self, kind: Kind, message: Wire) -> None:
        """Publish retained to the fleet; raises ``Transient`` if the broker does not accept it."""
        topic = broadcast_topic(self.fleet, kind)
        await self.link.publish(topic, encode(message), retain=True, timeout_s=self._timeout_s)

    async def withdraw(self, kind: Kind) -> None:
        """Clear a retained message to the fleet; raises ``Transient`` if the broker does not accept it."""
        topic = broadcast_topic(self.fleet, kind)
        await self.link.publish(topic, b"", retain=True, timeout_s=self._timeout_s)
