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
from lichen.broker.verdicts.finding import RowVerdict, either, failed, limited, passed
from runtime.mqtt.errors import SMALLEST_CHUNK_BYTES
from runtime.mqtt.session import TOPIC_ROOM
from runtime.settings.load import MqttSettings

DEFAULT_PACKET: int = MqttSettings().max_packet_bytes
_FLUENT = 16
"""Unacknowledged messages below which the coordinator's intake waits for round trips."""


def version(facts: ConnectionFacts) -> RowVerdict:
    """MQTT 5 or 3.1.1."""
    if facts.protocol == "5":
        return passed("MQTT 5")
    if not facts.refused_5:
        return passed("MQTT 3.1.1, as asked for")
    return limited(
        f"MQTT 3.1.1; not 5: {facts.refused_5}",
        'set protocol = "3.1.1" in [mqtt] of every daemon; the broker then tells no limits: set them by hand',
    )


def distinct(facts: ConnectionFacts) -> RowVerdict:
    """Two client ids, two connections."""
    return either(
        facts.distinct,
        ("both stay connected", "the second connection ended the first"),
        "the broker takes the client id from the user or the certificate: every process of lichen needs "
        "credentials of its own; for this check, use a listener or an account without that rule",
    )


def longest_id(facts: NameFacts) -> RowVerdict:
    """126 bytes."""
    return either(
        not facts.longest_id,
        ("accepted", facts.longest_id),
        "choose short names: a client id is agent-<fleet>-<device>",
        required=False,
    )


def dotted_id(facts: NameFacts) -> RowVerdict:
    """An id with a dot, which lichen never sends."""
    return either(
        not facts.dotted_id,
        ("accepted", facts.dotted_id),
        "none for lichen, whose names have no dots; other programs at this broker must not use them either",
        required=False,
    )


def longest_topic(facts: NameFacts) -> RowVerdict:
    """256 bytes and 7 slashes."""
    return either(
        facts.longest_topic > 0,
        (f"{facts.longest_topic} bytes arrive unchanged", "it does not arrive, or arrives changed"),
        "chunks have the longest topics: updates larger than chunk_bytes would not arrive",
    )


def capitals(facts: NameFacts) -> RowVerdict:
    """Topics that differ in capitals alone."""
    return either(
        facts.capitals,
        ("two topics", "one topic"),
        "devices whose names differ in capitals alone would read each other's messages: do not name them so",
        required=False,
    )


def dotted_topic(facts: NameFacts) -> RowVerdict:
    """A topic with a dot, which lichen never sends."""
    return either(
        facts.dotted_topic,
        ("arrives unchanged", "does not arrive"),
        "none for lichen, whose topics have no dots",
        required=False,
    )


def packet(facts: PacketFacts) -> RowVerdict:
    """The largest packet."""
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


def unacked(facts: QuotaFacts) -> RowVerdict:
    """Messages to a subscriber without PUBACK."""
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


def outgoing(facts: QuotaFacts) -> RowVerdict:
    """Publishes without a wait for PUBACK."""
    most = facts.receive_maximum
    named = "" if most is None else f"; CONNACK's Receive Maximum is {most}"
    if facts.outgoing == 0:
        return failed(f"none of them was acknowledged{named}", "lichen needs PUBACK")
    return either(
        facts.outgoing >= min(65, most or 65),
        (f"{facts.outgoing} were acknowledged{named}", f"only {facts.outgoing} were acknowledged{named}"),
        f"set window in [mqtt] to at most {max(1, facts.outgoing - 1)}",
        required=False,
    )


def keepalive(facts: KeepaliveFacts) -> RowVerdict:
    """A silent client."""
    if facts.server_s is not None and facts.server_s != facts.set_s:
        return limited(
            f"the broker sets {facts.server_s} s instead of {facts.set_s} s; not waited for",
            f"a device that vanishes shows as offline after about {1.5 * facts.server_s:g} s",
        )
    if facts.noticed_s is None:
        return limited(
            f"not noticed in {4 * facts.set_s} s", "a device that vanishes may show as online for long"
        )
    return passed(f"noticed after {facts.noticed_s:g} s")


def nameless(facts: AccessFacts) -> RowVerdict:
    """A client without credentials."""
    return either(
        not facts.nameless,
        ("refused", "let in"),
        "whoever reaches the port can send updates under any device's name: set up identities "
        "(docs/identity.md), or accounts and an access list",
        required=False,
    )


def broadcast(facts: AccessFacts) -> RowVerdict:
    """A device on the coordinator's broadcast topic."""
    return _device(facts, facts.broadcast, "a device can publish a task or a version for the whole fleet")


def foreign(facts: AccessFacts) -> RowVerdict:
    """A device on another device's topic."""
    return _device(facts, facts.foreign, "a device can send updates under another device's name")


def own(facts: AccessFacts) -> RowVerdict:
    """A device on its own topic."""
    if (untried := _no_device(facts)) is not None:
        return untried
    return either(
        bool(facts.own), ("comes through", "does not come through"), "this device could send no update"
    )


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
