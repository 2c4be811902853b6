"""A broker's session of one client, and how its connection ends."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Protocol

from runtime.mqtt.connection import Will


class Loss(Enum):
    """How a client learns that its connection is over: MQTT's reason, and whether TCP was closed in order."""

    RESET = ("Unspecified error", False)
    CLOSED = ("Unspecified error", True)
    NO_PINGRESP = ("Keep alive timeout", False)
    UNHEARD = ("", False)
    """The client's network thread died silently."""


@dataclass(slots=True, eq=False)
class Packet:
    """A message on its way to the broker, or to one subscriber."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False


class Line(Protocol):
    """A connection, as the broker uses it."""

    session: "BrokerSession | None"
    """Set by the broker at CONNECT."""
    receive_maximum: int
    """Messages that the client takes without acknowledgement."""

    def accept(self, *, present: bool) -> None:
        """Send CONNACK; ``present``: a session was there."""

    def send_down(self, packet: Packet) -> None:
        """Send PUBLISH."""

    def break_off(self, how: Loss | None = None) -> None:
        """Both ends notice the end at once; None: drawn how."""

    def refuse_further(self, how: Loss) -> None:
        """The broker has ended it; the client hears of it after a hop."""

    def watch_keepalive(self, blocked_until: float) -> None:
        """Nothing passes until then: an end whose keepalive runs out before gives up."""

    def go_deaf(self, *, pings_answered: bool) -> None:
        """From now on no message passes."""


@dataclass
class BrokerSession:
    """Subscriptions, queued messages, and sent messages without acknowledgement (in order)."""

    client_id: str
    filters: dict[str, int] = field(default_factory=dict)
    queue: deque[Packet] = field(default_factory=deque)
    sent: deque[Packet] = field(default_factory=deque)
    connection: Line | None = None
    will: Will | None = None
    expiry_s: float = 3600.0
    left_at: float = 0.0

    def requeue(self) -> None:
        """The connection is over: queue unacknowledged messages again, first and in order."""
        self.queue = deque(packet for packet in (*self.sent, *self.queue) if packet.qos)
        self.sent.clear()

    def copy(self) -> "BrokerSession":
        """The session as on disk: without a connection, unacknowledged messages queued."""
        waiting = deque(packet for packet in (*self.sent, *self.queue) if packet.qos)
        return BrokerSession(
            self.client_id, dict(self.filters), waiting, expiry_s=self.expiry_s, left_at=self.left_at
        )


def unshared(pattern: str) -> tuple[str, str]:
    """The group and the filter of a subscription; an ordinary one has the group "" (MQTT 5, 4.8.2)."""
    if not pattern.startswith("$share/"):
        return "", pattern
    _, group, rest = pattern.split("/", 2)
    return group, rest


@dataclass(frozen=True)
class SavedState:
    """A broker's persistence file."""

    retained: dict[str, bytes]
    sessions: dict[str, BrokerSession]


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
