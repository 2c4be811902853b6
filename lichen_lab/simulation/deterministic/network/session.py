"""What a broker keeps of one client."""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from runtime.mqtt.link import Will

if TYPE_CHECKING:
    from lichen_lab.simulation.deterministic.network.connection import Connection


@dataclass(slots=True, eq=False)
class Packet:
    """A message on its way to the broker, or to one subscriber."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False


@dataclass
class Session:
    """Subscriptions, what waits, and what was sent but not acknowledged (in order)."""

    client_id: str
    filters: dict[str, int] = field(default_factory=dict)
    queue: deque[Packet] = field(default_factory=deque)
    sent: deque[Packet] = field(default_factory=deque)
    connection: "Connection | None" = None
    will: Will | None = None
    expiry_s: float = 3600.0
    left_at: float = 0.0

    def requeue(self) -> None:
        """The connection is over: what was not acknowledged is delivered again, first and in order."""
        self.queue = deque(packet for packet in (*self.sent, *self.queue) if packet.qos)
        self.sent.clear()

    def copy(self) -> "Session":
        """As it would be found on disk: without a connection, everything unacknowledged queued."""
        waiting = deque(packet for packet in (*self.sent, *self.queue) if packet.qos)
        return Session(
            self.client_id, dict(self.filters), waiting, expiry_s=self.expiry_s, left_at=self.left_at
        )


@dataclass(frozen=True)
class SavedState:
    """A broker's persistence file."""

    retained: dict[str, bytes]
    sessions: dict[str, Session]


@lru_cache(maxsize=8192)
def matches(pattern: str, topic: str) -> bool:
    """Whether a topic filter takes a topic (MQTT 5, 4.7)."""
    if pattern == topic:
        return True
    wanted, levels = pattern.split("/"), topic.split("/")
    for i, level in enumerate(wanted):
        if level == "#":
            return not (i == 0 and topic.startswith("$"))
        if i >= len(levels) or (level not in ("+", levels[i])):
            return False
        if level == "+" and i == 0 and topic.startswith("$"):
            return False
    return len(wanted) == len(levels)
