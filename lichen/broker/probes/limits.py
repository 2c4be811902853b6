"""The largest packet, messages in flight, and the time until a silent client is noticed."""

import time
from typing import Final

from lichen.broker.client import ProbeClient
from lichen.broker.client_types import ClientOptions, NoAnswer
from lichen.broker.facts import LARGEST_PACKET, UNACKED, KeepaliveFacts, PacketFacts, QuotaFacts
from lichen.broker.lab import HOLDS, Lab
from runtime.mqtt.session import packet_bytes

_SMALLEST: Final = 1024
_EXACT: Final = 1024
"""The limit is found to so many bytes."""
_OUTGOING: Final = 65
"""Chunks in flight at the largest ``window``, and a control message."""
_KEEPALIVE_S: Final = 2
_PATIENCE_S: Final = 12.0
"""1.5 times the keepalive, then up to 5 s until Mosquitto 2.0 looks for silent clients again (its source)."""
_ARRIVES_S: Final = 3.0


def packet(lab: Lab) -> PacketFacts:
    """The largest packet that arrives: the largest of ours first, then by halves.

    Raises:
        NoAnswer: the broker did not answer.
    """
    topic = lab.topic("packet")
    with lab.client("packets") as watcher:
        watcher.subscribe(topic)
        named = watcher.limits.packet_bytes
        most = LARGEST_PACKET if named is None else min(named, LARGEST_PACKET)
        if _passes(lab, watcher, topic, most):
            return PacketFacts(most, named)
        passes, fails = 0, most
        while fails - passes > _EXACT and fails > _SMALLEST:
            size = (passes + fails) // 2
            passes, fails = (size, fails) if _passes(lab, watcher, topic, size) else (passes, size)
    return PacketFacts(passes, named)


def _passes(lab: Lab, watcher: ProbeClient, topic: str, size: int) -> bool:
    """Whether a packet of this size arrives; brokers also drop those that are too large without a word."""
    room = packet_bytes(topic, size, 1, mqtt5=lab.settings.protocol == "5") - size
    payload, before = bytes(size - room), len(watcher.received(0))
    try:
        with lab.client("large") as sender:
            mid = sender.send(topic, payload)
            if sender.wait_acks([mid], _ARRIVES_S + size / 2e5)[0]:
                return False
    except NoAnswer:
        return False
    if not watcher.open:
        raise NoAnswer(f"the subscriber was disconnected by a packet of {size} bytes")
    return any(len(m.payload) == len(payload) for m in watcher.received(before + 1, _ARRIVES_S)[before:])


def quota(lab: Lab) -> QuotaFacts:
    """Messages to a subscriber that acknowledges none, and publishes without a wait.

    Raises:
        NoAnswer: the broker did not answer.
    """
    topic = lab.topic("quota", "d")
    with lab.client("slow", HOLDS) as slow, lab.client("fast") as fast:
        slow.subscribe(f"{topic}/+/up/#")
        fast.publish_all([(f"{topic}/x-{n % 7}/up/update", b"%d" % n) for n in range(UNACKED)])
        unacked = len(slow.received(UNACKED, 6.0, quiet_s=0.7))
        slow.acknowledges_from_now()
        rest = len({m.payload for m in slow.received(UNACKED, 6.0, quiet_s=2.0)})
        most = min(_OUTGOING, fast.limits.receive_maximum or _OUTGOING)
        sent = [fast.send(lab.topic("nobody"), b"") for _ in range(most)]
        return QuotaFacts(unacked, rest, fast.wait_acks(sent).count(""), fast.limits.receive_maximum)


def keepalive(lab: Lab) -> KeepaliveFacts:
    """A client that falls silent, its socket open; its will shows when the broker noticed.

    Raises:
        NoAnswer: the broker did not answer.
    """
    topic = lab.topic("silent")
    options = ClientOptions(keepalive_s=_KEEPALIVE_S, will=lab.will(topic))
    with lab.client("listener") as watcher:
        watcher.subscribe(topic)
        silent = lab.client("silent", options)
        server_s = silent.limits.keepalive_s
        began = time.monotonic()
        silent.fall_silent()
        wait_s = 0.0 if (server_s or 0) > _KEEPALIVE_S else _PATIENCE_S
        came = watcher.received(1, wait_s)
        silent.cut()
    return KeepaliveFacts(_KEEPALIVE_S, round(came[0].at - began, 1) if came else None, server_s)
