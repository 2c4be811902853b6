"""A link that publishes only while its process holds the lease of the leader."""

from collections.abc import Callable
from typing import Any

from protocol.errors import Transient
from runtime.mqtt.running_link import RunningLink


class LeasedLink:
    """Wraps a link (:class:`coordinator.messaging.sender.RunningLink`).

    A process that was stopped for longer than its lease would tell devices what is no longer true. All
    leaders have the same client id, too: the broker ends the connection of the former one.

    Args:
        link: to the broker.
        holds: whether the lease is certainly held now.
    """

    def __init__(self, link: RunningLink, holds: Callable[[], bool]) -> None:
        self._link, self._holds = link, holds

    @property
    def connected(self) -> bool:
        """Whether something can be published now."""
        return self._link.connected and self._holds()

    def __getattr__(self, name: str) -> Any:
        """All else is the link's."""
        return getattr(self._link, name)

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """As the link's; raises ``Transient`` without the lease."""
        if not self._holds():
            raise Transient(f"{topic} was not published: this process does not hold the leader's lease now")
        await self._link.publish(topic, payload, qos=qos, retain=retain, timeout_s=timeout_s)
