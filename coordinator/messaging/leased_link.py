"""A link that publishes only while its process holds the lease of the leader."""

from collections.abc import AsyncIterator, Callable

from coordinator.messaging.sender import Counters, RunningLink
from protocol.errors import Transient
from runtime.mqtt.link import Message, OnConnect, WillNow


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

    @property
    def why(self) -> str:
        """The state of the link, as text."""
        return self._link.why

    @property
    def since(self) -> float:
        """When :attr:`why` began, Unix seconds."""
        return self._link.since

    @property
    def until(self) -> float | None:
        """Time of the next attempt, Unix seconds."""
        return self._link.until

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits a packet."""
        return self._link.chunk_bytes

    @property
    def counters(self) -> Counters:
        """Bytes so far."""
        return self._link.counters

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """As the link's; raises ``Transient`` without the lease."""
        if not self._holds():
            raise Transient(f"{topic} was not published: this process does not hold the leader's lease now")
        await self._link.publish(topic, payload, qos=qos, retain=retain, timeout_s=timeout_s)

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """As the link's."""
        await self._link.run(on_connect=on_connect, will=will)

    def messages(self) -> AsyncIterator[Message]:
        """As the link's."""
        return self._link.messages()
