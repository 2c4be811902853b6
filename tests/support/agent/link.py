"""A link that records publishes, for unit tests of the agent's services."""

import asyncio
from typing import TypeVar

from protocol.base import Wire
from protocol.errors import Transient
from protocol.messages import decode
from runtime.mqtt.link import LinkCounters

W = TypeVar("W", bound=Wire)


class FakeLink:
    def __init__(self, chunk_bytes: int = 65536) -> None:
        self.connected = True
        self.counters = LinkCounters()
        self.chunk_bytes = chunk_bytes
        self.sent: list[tuple[str, bytes, bool]] = []
        self.in_flight = 0
        self.most_in_flight = 0

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        del qos, timeout_s
        if not self.connected:
            raise Transient("not connected")
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        self.sent.append((topic, payload, retain))

    def on(self, tail: str) -> list[bytes]:
        """Payloads whose topic ends with ``tail``."""
        return [payload for topic, payload, _ in self.sent if topic.endswith(tail)]

    def messages(self, tail: str, kind: type[W]) -> list[W]:
        return [decode(payload, kind) for payload in self.on(tail)]
