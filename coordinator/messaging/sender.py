"""Sends the coordinator's control messages."""

from typing import Final

from protocol.base import Wire
from protocol.messages import encode
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.mqtt.running_link import MessagePublisher

_RETAINED: Final = frozenset({Kind.MODEL})
"""Message kinds to one device that stay true until replaced: the broker retains them."""


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
