"""The link as services see it: that of ``runtime.mqtt.link``, a view of one that tasks share, or a test's."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from runtime.mqtt.connection import Will
from runtime.mqtt.inbox import Message
from runtime.mqtt.session import LinkCounters

OnConnect = Callable[[], Awaitable[None]]
WillNow = Will | Callable[[], Will]
"""A will, or the function that makes it at each connect."""


class MessagePublisher(Protocol):
    """Publishing, and the limit of one publish."""

    @property
    def connected(self) -> bool:
        """Whether messages can be sent."""

    @property
    def why(self) -> str:
        """The current state in words."""

    @property
    def since(self) -> float:
        """Since when it holds, Unix seconds."""

    @property
    def until(self) -> float | None:
        """The time of the next attempt to connect, Unix seconds; None: connected, or trying."""

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits into a packet."""

    @property
    def counters(self) -> LinkCounters:
        """Of the connection."""

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Send, and return at PUBACK. Raises Refused, Transient."""


class RunningLink(MessagePublisher, Protocol):
    """A link that a daemon runs."""

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """A service: stay connected; ``on_connect`` runs after each connect, ``will`` before it."""

    def messages(self) -> AsyncIterator[Message]:
        """Incoming messages, without end; each must be acknowledged."""
