"""Verdicts on versions, names, packets, quotas and access."""

from lichen.broker.facts import (
    LARGEST_PACKET,
    UNACKED,
    AccessFacts,
    ConnectionFacts,
    KeepaliveFacts,
    NameFacts,
    PacketFacts,
    QuotaFacts,
)
from lichen.broker.verdicts.finding import RowVerdict, check, either, failed, limited, passed
from runtime.mqtt.errors import SMALLEST_CHUNK_BYTES
from runtime.mqtt.session import TOPIC_ROOM
from runtime.settings.load import MqttSettings

DEFAULT_PACKET: int = MqttSettings().max_packet_bytes
_CONNECTION = "lichen needs a connection"
_FLUENT = 16
"""Unacknowledged messages below which the coordinator's intake waits for round trips."""


@check(ConnectionFacts, "version", "CONNECT in MQTT 5, else 3.1.1", _CONNECTION)
def _version(facts: ConnectionFacts) -> RowVerdict:
    if facts.protocol == "5":
        return passed("MQTT 5")
    if not facts.refused_5:
        return passed("MQTT 3.1.1, as asked for")
    return limited(
        f"MQTT 3.1.1; not 5: {facts.refused_5}",
        'set protocol = "3.1.1" in [mqtt] of every daemon; the broker then tells no limits: set them by hand',
    )


@check(ConnectionFacts, "client_id.distinct", "two clients at once", _CONNECTION)
def _distinct(facts: ConnectionFacts) -> RowVerdict:
    return either(
        facts.distinct,
        ("both stay connected", "the second connection ended the first"),
        "the broker takes the client id from the user or the certificate: every process of lichen needs "
        "credentials of its own; for this check, use a listener or an account without that rule",
        required=True,
    )


@check(NameFacts, "client_id.longest", "a client id of 126 bytes")
def _longest_id(facts: NameFacts) -> RowVerdict:
    return either(
        not facts.longest_id,
        ("accepted", facts.longest_id),
        "choose short names: a client id is agent-<fleet>-<device>",
    )


@check(NameFacts, "client_id.dot", "a client id with a dot")
def _dotted_id(facts: NameFacts) -> RowVerdict:
    return either(
        not facts.dotted_id,
        ("accepted", facts.dotted_id),
        "none for lichen, whose names have no dots; other programs at this broker must not use them either",
    )


@check(NameFacts, "topic.longest", "the longest topic, 7 slashes", "chunks need long topics")
def _longest_topic(facts: NameFacts) -> RowVerdict:
    return either(
        facts.longest_topic > 0,
        (f"{facts.longest_topic} bytes arrive unchanged", "it does not arrive, or arrives changed"),
        "chunks have the longest topics: updates larger than chunk_bytes would not arrive",
        required=True,
    )


@check(NameFacts, "topic.capitals", "topics that differ in capitals")
def _capitals(facts: NameFacts) -> RowVerdict:
    return either(
        facts.capitals,
        ("two topics", "one topic"),
        "devices whose names differ in capitals alone would read each other's messages: do not name them so",
    )


@check(NameFacts, "topic.dot", "a topic with a dot in a level")
def _dotted_topic(facts: NameFacts) -> RowVerdict:
    return either(
        facts.dotted_topic,
        ("arrives unchanged", "does not arrive"),
        "none for lichen, whose topics have no dots",
    )


@check(PacketFacts, "packet.largest", "packets up to 1 MiB", "lichen needs to send chunks")
def _packet(facts: PacketFacts) -> RowVerdict:
    named = "" if facts.named is None else f"; CONNACK says {facts.named:,}"
    measured = f"{facts.largest:,} bytes arrive{named}"
    if facts.largest < SMALLEST_CHUNK_BYTES + TOPIC_ROOM:
        return failed(measured, f"lichen needs packets of {SMALLEST_CHUNK_BYTES + TOPIC_ROOM} bytes")
    chunk = facts.largest - TOPIC_ROOM
    if facts.largest < DEFAULT_PACKET:
        chunk -= chunk % 1024
        return limited(
            measured,
            f"set max_packet_bytes = {facts.largest} and chunk_bytes = {chunk} in [mqtt] of every daemon",
        )
    if facts.largest < LARGEST_PACKET:
        return passed(measured, f"enough for the defaults; chunk_bytes must stay at or below {chunk}")
    return passed(measured)


@check(QuotaFacts, "quota.unacked", "200 messages, no PUBACK from the subscriber")
def _unacked(facts: QuotaFacts) -> RowVerdict:
    every = facts.unacked >= UNACKED
    measured = f"{'at least ' if every else ''}{facts.unacked} messages"
    if facts.rest < UNACKED:
        return failed(
            f"{measured}, and {facts.rest} of {UNACKED} after PUBACKs",
            "the broker drops messages for a busy coordinator: raise its queue limit",
        )
    if facts.unacked < _FLUENT:
        words = (
            f"the coordinator takes at most {facts.unacked} updates a round trip: raise the broker's limit"
        )
        return limited(measured, words)
    return passed(measured)


@check(QuotaFacts, "quota.outgoing", "65 publishes at once")
def _outgoing(facts: QuotaFacts) -> RowVerdict:
    most = facts.receive_maximum
    named = "" if most is None else f"; CONNACK's Receive Maximum is {most}"
    if facts.outgoing == 0:
        return failed(f"none of them was acknowledged{named}", "lichen needs PUBACK")
    return either(
        facts.outgoing >= min(65, most or 65),
        (f"{facts.outgoing} were acknowledged{named}", f"only {facts.outgoing} were acknowledged{named}"),
        f"set window in [mqtt] to at most {max(1, facts.outgoing - 1)}",
    )


@check(KeepaliveFacts, "keepalive", "a client that falls silent, keepalive 2 s")
def _keepalive(facts: KeepaliveFacts) -> RowVerdict:
    if facts.server_s is not None and facts.server_s != facts.set_s:
        return limited(
            f"the broker sets {facts.server_s} s instead of {facts.set_s} s; not waited for",
            f"a device that vanishes shows as offline after about {1.5 * facts.server_s:g} s",
        )
    if facts.noticed_s is None:
        return limited(
            f"not noticed in {6 * facts.set_s} s", "a device that vanishes may show as online for long"
        )
    return passed(f"noticed after {facts.noticed_s:g} s")


@check(AccessFacts, "access.nameless", "CONNECT without credentials")
def _nameless(facts: AccessFacts) -> RowVerdict:
    return either(
        not facts.nameless,
        ("refused", "let in"),
        "whoever reaches the port can send updates under any device's name: set up identities "
        "(docs/identity.md), or accounts and an access list",
    )


@check(AccessFacts, "access.own", "a device on its own topic")
def _own(facts: AccessFacts) -> RowVerdict:
    if (untried := _no_device(facts)) is not None:
        return untried
    return either(
        bool(facts.own),
        ("comes through", "does not come through"),
        "this device could send no update",
        required=True,
    )


@check(AccessFacts, "access.foreign", "a device on another device's topic")
def _foreign(facts: AccessFacts) -> RowVerdict:
    return _device(facts, facts.foreign, "a device can send updates under another device's name")


@check(AccessFacts, "access.broadcast", "a device on a broadcast topic")
def _broadcast(facts: AccessFacts) -> RowVerdict:
    return _device(facts, facts.broadcast, "a device can publish a task or a version for the whole fleet")


def _device(facts: AccessFacts, through: bool | None, danger: str) -> RowVerdict:  # noqa: FBT001 - an observation
    if (untried := _no_device(facts)) is not None:
        return untried
    todo = f"{danger}: write an access list by device name (docs/identity.md)"
    return either(not through, ("does not come through", "comes through"), todo, required=False)


def _no_device(facts: AccessFacts) -> RowVerdict | None:
    if facts.device_in is None:
        return RowVerdict("untried", "no credentials of a device were given (--device-config)")
    if facts.device_in:
        return RowVerdict("untried", f"the device was not let in: {facts.device_in}")
    return None
