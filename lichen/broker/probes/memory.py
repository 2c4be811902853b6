"""What a broker remembers: retained messages, sessions, wills."""

import time

from lichen.broker.client import ANSWER_S
from lichen.broker.client_types import ClientOptions
from lichen.broker.facts import QUEUED, RETAINED, RetainedFacts, SessionFacts, WillFacts
from lichen.broker.lab import BACK, PERSISTENT, Lab

_QUIET_S = 0.7


def retained(lab: Lab) -> RetainedFacts:
    """Delivery on SUBSCRIBE, to a wildcard too; replacement; removal.

    Raises:
        NoAnswer: the broker did not answer.
    """
    one = lab.retained(lab.topic("kept"))
    many = [lab.retained(lab.topic("states", "d", f"dev-{n}", "up", "state")) for n in range(RETAINED)]
    with lab.client("states") as sender:
        sender.publish(one, b"first", retain=True)
        exact = _read(lab, one) == (b"first",)
        sender.publish(one, b"second", retain=True)
        replaced = _read(lab, one)
        sender.publish(one, b"", retain=True)
        cleared = len(_read(lab, one))
        sender.publish_all([(topic, b"state") for topic in many], retain=True)
    with lab.client("roster") as reader:
        pattern = lab.topic("states", "d", "+", "up", "#")
        reader.subscribe(pattern)
        states = reader.received(RETAINED, 10.0, quiet_s=2.0)
        wildcard = len({m.topic for m in states if m.retain})
        before = len(reader.received(0))
        reader.subscribe(pattern)
        again = reader.received(before + RETAINED, 6.0, quiet_s=_QUIET_S)[before:]
    return RetainedFacts(exact, wildcard, len({m.topic for m in again if m.retain}), replaced, cleared)


def _read(lab: Lab, topic: str) -> tuple[bytes, ...]:
    """Retained payloads that a new subscriber gets."""
    with lab.client("reader") as reader:
        reader.subscribe(topic)
        return tuple(m.payload for m in reader.quiet(_QUIET_S) if m.retain)


def session(lab: Lab) -> SessionFacts:
    """Messages for a client with a persistent session that is away.

    Raises:
        NoAnswer: the broker did not answer.
    """
    topic = lab.topic("away")
    with lab.client("away", PERSISTENT) as client:
        client.subscribe(topic)
    with lab.client("talker") as sender:
        published = sender.publish_all([(topic, b"%d" % n) for n in range(QUEUED)])
    with lab.client("away", BACK) as client:
        numbers = [int(m.payload) for m in client.received(published, 15.0, quiet_s=3.0)]
        firsts = list(dict.fromkeys(numbers))
        return SessionFacts(client.present, len(firsts), published, firsts == sorted(firsts))


def will(lab: Lab) -> WillFacts:
    """The will after a cut and after a DISCONNECT.

    Raises:
        NoAnswer: the broker did not answer.
    """
    cut, orderly = lab.topic("will", "cut"), lab.topic("will", "orderly")
    with lab.client("watcher") as watcher:
        watcher.subscribe(lab.topic("will", "#"))
        dying = lab.client("dying", ClientOptions(will=lab.will(cut)))
        leaving = lab.client("leaving", ClientOptions(will=lab.will(orderly)))
        leaving.close()
        began = time.monotonic()
        dying.cut()
        watcher.received(1, ANSWER_S)
        came = {m.topic: m.at - began for m in watcher.quiet(0.5)}
    return WillFacts(came.get(cut), _read(lab, cut) == (b"gone",), orderly in came)
