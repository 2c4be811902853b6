"""What the publisher needs of something that takes commands from the broker of the site."""

from typing import Any, Protocol

from runtime.concurrency.signals import Signal
from runtime.mqtt.inbox import Message


class Controls(Protocol):
    """Something on the site's broker that is published besides predictions, and takes commands."""

    changed: Signal
    """Set if there is something to publish."""

    @property
    def announcements(self) -> dict[str, bytes]:
        """Discovery topic -> payload."""

    @property
    def is_ready(self) -> bool:
        """Whether :attr:`announcements` are final."""

    @property
    def status(self) -> dict[str, Any]:
        """For the agent's status."""

    def take(self) -> tuple[str, bytes] | None:
        """Topic and payload to publish, retained."""

    def published(self, payload: bytes) -> None:
        """That payload is at the broker."""

    def publish_again(self) -> None:
        """The broker may have lost it."""

    def is_command(self, topic: str) -> bool:
        """Whether a topic is for :meth:`hear`."""

    async def hear(self, message: Message) -> None:
        """Act on a message."""

    async def run(self) -> None:
        """A service."""
