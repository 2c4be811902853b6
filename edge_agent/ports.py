"""What the services need of the MQTT link, so that tests can stand in for it."""

from typing import Protocol


class Publisher(Protocol):
    """The part of ``runtime.mqtt.Link`` that sends."""

    @property
    def connected(self) -> bool:
        """Whether a publish can work now."""

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits one packet."""

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Send; returns at PUBACK. Raises Transient or Refused."""
