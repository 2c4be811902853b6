"""What the probes observe: values without judgement, one class a probe."""

from dataclasses import dataclass, field
from typing import Any, Final, Self

LARGEST_PACKET: Final = 1024 * 1024 + 512
"""The largest packet that lichen can be set to send: a chunk of 1 MiB and its header."""
RETAINED: Final = 300
"""Retained messages behind one wildcard filter: the states of a fleet."""
QUEUED: Final = 1200
"""Messages for a client that is away; Mosquitto's default limit is 1000."""
UNACKED: Final = 200
"""Messages for a subscriber that acknowledges none."""
SHARED: Final = 200
"""Messages for a group of two subscribers."""
ORDERED: Final = 300
"""Messages of one topic."""
REPEATED: Final = 3
"""Messages that a subscriber holds when its connection breaks."""
HELD: Final = 20
"""Messages for a group of which one member does not acknowledge, or is away."""


@dataclass(frozen=True, slots=True)
class ConnackLimits:
    """Limits that CONNACK of MQTT 5 names; None: not named."""

    packet_bytes: int | None = None
    receive_maximum: int | None = None
    keepalive_s: int | None = None
    session_expiry_s: int | None = None
    shared: int | None = None

    @classmethod
    def of(cls, properties: Any) -> Self:
        """From paho's properties, or None."""

        def named(name: str) -> int | None:
            value = getattr(properties, name, None)
            return None if value is None else int(value)

        return cls(
            named("MaximumPacketSize"),
            named("ReceiveMaximum"),
            named("ServerKeepAlive"),
            named("SessionExpiryInterval"),
            named("SharedSubscriptionAvailable"),
        )


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """Of the first connections.

    Attributes:
        protocol: that was accepted.
        refused_5: why MQTT 5 was not; empty: it was, or it was not tried.
        distinct: whether two clients with different ids stay connected at once.
        limits: of CONNACK.
    """

    protocol: str
    refused_5: str = ""
    distinct: bool = True
    limits: ConnackLimits = field(default=ConnackLimits())


@dataclass(frozen=True, slots=True)
class NameFacts:
    """Of client ids and topics.

    Attributes:
        longest_id: why a client id of 126 bytes was refused; empty: it was accepted.
        dotted_id: the same of an id with a dot.
        longest_topic: bytes of a topic that arrived unchanged; 0: it did not arrive.
        dotted_topic: whether a topic with a dot in a level arrived unchanged.
        capitals: whether topics that differ in capitals alone are different topics.
    """

    longest_id: str
    dotted_id: str
    longest_topic: int
    dotted_topic: bool
    capitals: bool


@dataclass(frozen=True, slots=True)
class RetainedFacts:
    """Of retained messages.

    Attributes:
        exact: whether a new subscriber gets the message, with its retain flag.
        wildcard: how many of 300 a wildcard filter brings.
        again: how many come when the same client subscribes again.
        replaced: payloads after a second one was published.
        cleared: messages after an empty one was published.
    """

    exact: bool
    wildcard: int
    again: int
    replaced: tuple[bytes, ...]
    cleared: int


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """Of a client that was away.

    Attributes:
        present: whether CONNACK says that the session exists.
        queued: how many of the 1,200 messages for a client that was away came.
        published: how many of them the broker acknowledged.
        in_order: whether they came in the order of their publication.
    """

    present: bool
    queued: int
    published: int
    in_order: bool


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """Of messages at QoS 1.

    Attributes:
        redelivered: unacknowledged messages, of 3, that came again after a reconnect.
        taken_over: whether a second connection with one client id works, and ended the first.
        overlap: how often a message came to a client with two filters that match it.
        several_filters: whether a SUBSCRIBE of three filters was granted, and each one delivered.
        in_order: whether 300 messages of one topic came in order.
        complete: how many of them came.
        puback_ms: median time of a PUBACK on a topic without subscribers.
    """

    redelivered: int
    taken_over: bool
    overlap: int
    several_filters: bool
    in_order: bool
    complete: int
    puback_ms: float


@dataclass(frozen=True, slots=True)
class WillFacts:
    """Of a retained will.

    Attributes:
        after_cut: seconds from the cut until the will came; None: it did not.
        retained: whether a later subscriber gets it.
        after_disconnect: whether it came after a DISCONNECT, too.
    """

    after_cut: float | None
    retained: bool
    after_disconnect: bool


@dataclass(frozen=True, slots=True)
class PacketFacts:
    """Of packet sizes.

    Attributes:
        largest: bytes of the largest packet that arrived; 0: none of 1 KiB.
        named: the limit that CONNACK names.
    """

    largest: int
    named: int | None


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """Of messages in flight.

    Attributes:
        unacked: of 200 messages, how many came before the subscriber acknowledged one.
        rest: how many there were in all once it acknowledged.
        outgoing: of 65 publishes without a wait, how many got a PUBACK.
        receive_maximum: that CONNACK names.
    """

    unacked: int
    rest: int
    outgoing: int
    receive_maximum: int | None


@dataclass(frozen=True, slots=True)
class SharedFacts:
    """A group of two, A and B.

    Attributes:
        refused: why the group could not subscribe; empty: it could.
        counts: of 200 messages, how many came to A and to B.
        twice: messages that came more than once.
        missing: messages that did not come.
        lost_with_member: of 20 messages, those that did not come to B after A, whose session ended with its
            connection, held some without PUBACK and was cut off.
        held: how many A held then.
        lost_with_away: of 20 messages, those that did not come to B while A, whose session stays, was away.
    """

    refused: str
    counts: tuple[int, int] = (0, 0)
    twice: int = 0
    missing: int = 0
    lost_with_member: int = 0
    held: int = 0
    lost_with_away: int = 0


@dataclass(frozen=True, slots=True)
class KeepaliveFacts:
    """Of a client that falls silent.

    Attributes:
        set_s: the keepalive interval of the silent client.
        noticed_s: seconds until its will came; None: not in the time of the probe.
        server_s: the interval that the broker sets instead.
    """

    set_s: int
    noticed_s: float | None
    server_s: int | None = None


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """What a client with the credentials of a device, or with none, may do; None: not tried.

    Attributes:
        nameless: whether a client without credentials is let in.
        device_in: why the device was not let in; empty: it was.
        broadcast: whether the device's message on a broadcast topic came through.
        foreign: whether its message on another device's topic came through.
        own: whether its message on its own topic came through.
    """

    nameless: bool
    device_in: str | None = None
    broadcast: bool | None = None
    foreign: bool | None = None
    own: bool | None = None


@dataclass(frozen=True, slots=True)
class TidyFacts:
    """Of the removal of what the check published.

    Attributes:
        left: retained messages of this check that could not be removed.
        trouble: why the broker could not be asked; empty: it could.
    """

    left: int
    trouble: str = ""


Facts = (
    ConnectionFacts
    | NameFacts
    | RetainedFacts
    | SessionFacts
    | DeliveryFacts
    | WillFacts
    | PacketFacts
    | QuotaFacts
    | SharedFacts
    | KeepaliveFacts
    | AccessFacts
    | TidyFacts
)
