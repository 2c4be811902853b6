"""What the coordinator needs of the MQTT link; ``runtime.mqtt.link.Link`` has it, tests bring their own."""

from collections.abc import AsyncIterator
from typing import Final, Protocol

from protocol.base import Wire
from protocol.messages import encode
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.mqtt.link import Message, OnConnect, WillNow

_RETAINED: Final = frozenset({Kind.MODEL})
"""Of what goes to one device, that which stays true until it is replaced: the broker keeps it."""


class Counters(Protocol):
    """Bytes on the wire since the process started."""

    bytes_in: int
    bytes_out: int


class MessagePublisher(Protocol):
    """Publishing, and how much one publish may carry."""

    @property
    def connected(self) -> bool:
        """Whether the broker is there now."""

    @property
    def why(self) -> str:
        """In words, what the link is doing."""

    @property
    def since(self) -> float:
        """When ``why`` began, unix seconds."""

    @property
    def until(self) -> float | None:
        """When it tries again, unix seconds."""

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits a packet."""

    @property
    def counters(self) -> Counters:
        """Bytes so far."""

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Return at PUBACK; ``Transient`` when that does not come."""


class RunningLink(MessagePublisher, Protocol):
    """A link as the app runs it."""

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Keep connected for ever; ``on_connect`` after each connect, ``will`` is asked before it."""

    def messages(self) -> AsyncIterator[Message]:
        """What arrives; every message must be acknowledged."""


class Sender:
    """Sends control messages to one fleet."""

    def __init__(self, link: MessagePublisher, fleet: str, timeout_s: float = 10.0) -> None:
        self.link = link
        self.fleet = fleet
        self._timeout_s = timeout_s

    async def to_device(self, device: str, kind: Kind, message: Wire) -> None:
        """Publish to one device, a pointer retained; ``Transient`` when the broker does not take it."""
        topic, retain = device_topic(self.fleet, device, kind), kind in _RETAINED
        await self.link.publish(topic, encode(message), retain=retain, timeout_s=self._timeout_s)

    async def clear(self, device: str, kind: Kind) -> None:
        """Take back what is retained for one device; ``Transient`` when the broker does not take it."""
        topic = device_topic(self.fleet, device, kind)
        await self.link.publish(topic, b"", retain=True, timeout_s=self._timeout_s)

    async def broadcast(self, kind: Kind, message: Wire) -> None:
        """Publish retained to the fleet; ``Transient`` when the broker does not take it."""
        topic = broadcast_topic(self.fleet, kind)
        await self.link.publish(topic, encode(message), retain=True, timeout_s=self._timeout_s)
