"""Order, redelivery, takeover, filters, and names of topics and clients."""

import statistics
import time
from typing import Final

from lichen.broker.client import ProbeClient
from lichen.broker.client_types import ClientOptions, NoAnswer
from lichen.broker.facts import ORDERED, REPEATED, ConnectionFacts, DeliveryFacts, NameFacts
from lichen.broker.lab import BACK, PERSISTENT, Lab
from protocol.topics import MAX_SLASHES, MAX_TOPIC_BYTES

_LONGEST_ID: Final = 126
_LEVEL: Final = 72
"""Characters of the longest level: a digest and the number of a chunk."""
_HOLD: Final = ClientOptions(persistent=True, fresh=True, acknowledges=False)


def connection(lab: Lab, *, either: bool) -> ConnectionFacts:
    """Which version of MQTT, and whether two client ids are two connections.

    Args:
        lab: its settings have the version that is tried.
        either: try 3.1.1 after 5 was refused; the lab then has that version.

    Raises:
        NoAnswer: there is no connection.
    """
    refused = ""
    try:
        first = lab.client("first")
    except NoAnswer as error:
        if not (either and getattr(error, "wrong_version", False)):
            raise
        refused = str(error)
        lab.settings = lab.settings.model_copy(update={"protocol": "3.1.1"})
        first = lab.client("first")
    with first, lab.client("second"):
        distinct = not first.wait_end(0.3)
        return ConnectionFacts(lab.settings.protocol, refused, distinct, first.limits)


def names(lab: Lab) -> NameFacts:
    """The longest client id and topic, dots, capitals.

    Raises:
        NoAnswer: the broker did not answer.
    """
    long_topic = lab.topic(*_levels(MAX_TOPIC_BYTES - len(lab.prefix), MAX_SLASHES - lab.prefix.count("/")))
    dotted, small, large = lab.topic("names", "a.b"), lab.topic("names", "aa"), lab.topic("names", "Aa")
    with lab.client("names") as client:
        client.subscribe(lab.topic("#"))
        client.publish(long_topic, b"long")
        client.publish(small, b"small")
        came = {one.topic for one in client.received(2)}
    try:
        with lab.client("dots") as client:
            client.subscribe(lab.topic("names", "+"))
            client.publish(dotted, b"dot")
            dot = any(one.topic == dotted for one in client.received(1, 2.0))
    except NoAnswer:
        dot = False
    with lab.client("capitals") as client:
        client.subscribe(small)
        client.publish(large, b"")
        client.publish(small, b"last")
        capitals = [one.payload for one in client.received(1)] == [b"last"]
    return NameFacts(
        longest_id=_id_refused(lab, f"check-{lab.run}-A_b-0".ljust(_LONGEST_ID, "x")),
        dotted_id=_id_refused(lab, f"check-{lab.run}.dot"),
        longest_topic=len(long_topic) if long_topic in came else 0,
        dotted_topic=dot,
        capitals=capitals,
    )


def _levels(room: int, count: int) -> list[str]:
    """Levels that use up the room, slashes included."""
    levels = []
    for left in range(count, 0, -1):
        size = max(1, min(_LEVEL, room // left - 1) if left > 1 else min(room - 1, 128))
        levels.append(("a_B-9~" * 32)[:size])
        room -= size + 1
    return levels


def _id_refused(lab: Lab, name: str) -> str:
    try:
        with ProbeClient(lab.settings, lab.password, name) as client:
            client.connect()
    except NoAnswer as error:
        return str(error)
    return ""


def delivery(lab: Lab) -> DeliveryFacts:
    """Redelivery, takeover, overlap, order, and the time of a PUBACK.

    Raises:
        NoAnswer: the broker did not answer.
    """
    with lab.client("sender") as sender:
        in_order, complete = _ordered(lab, sender)
        return DeliveryFacts(
            redelivered=_redelivered(lab, sender),
            taken_over=_taken_over(lab, sender),
            overlap=_overlap(lab, sender),
            several_filters=_several(lab, sender),
            in_order=in_order,
            complete=complete,
            puback_ms=_puback_ms(lab, sender),
        )


def _redelivered(lab: Lab, sender: ProbeClient) -> int:
    topic = lab.topic("again")
    holder = lab.client("holder", _HOLD)
    holder.subscribe(topic)
    sender.publish_all([(topic, bytes([n])) for n in range(REPEATED)])
    holder.received(REPEATED)
    holder.cut()
    with lab.client("holder", BACK) as back:
        return len({one.payload for one in back.received(REPEATED)})


def _taken_over(lab: Lab, sender: ProbeClient) -> bool:
    topic = lab.topic("taken")
    first = lab.client("twin", PERSISTENT)
    first.subscribe(topic)
    try:
        with lab.client("twin", BACK) as second:
            ended = bool(first.wait_end(3.0))
            sender.publish(topic, b"")
            return ended and len(second.received(1)) == 1
    finally:
        first.close()


def _overlap(lab: Lab, sender: ProbeClient) -> int:
    with lab.client("overlap") as client:
        client.subscribe(lab.topic("overlap", "d", "+", "up", "#"))
        client.subscribe(lab.topic("overlap", "d", "+", "up", "state"))
        sender.publish(lab.topic("overlap", "d", "x", "up", "state"), b"")
        client.received(1)
        return len(client.quiet(0.4))


def _several(lab: Lab, sender: ProbeClient) -> bool:
    filters = (
        lab.topic("f", "d", "x", "down", "#"),
        lab.topic("f", "b", "task"),
        lab.topic("f", "b", "model"),
    )
    topics = [lab.topic("f", "d", "x", "down", "offer"), *filters[1:]]
    with lab.client("filters") as client:
        client.subscribe(*filters)
        sender.publish_all([(topic, b"") for topic in topics])
        return {one.topic for one in client.received(3)} == set(topics)


def _ordered(lab: Lab, sender: ProbeClient) -> tuple[bool, int]:
    topic = lab.topic("order")
    with lab.client("ordered") as client:
        client.subscribe(topic)
        sender.publish_all([(topic, b"%d" % n) for n in range(ORDERED)])
        numbers = [int(one.payload) for one in client.received(ORDERED, 10.0)]
    firsts = list(dict.fromkeys(numbers))
    return firsts == sorted(firsts), len(firsts)


def _puback_ms(lab: Lab, sender: ProbeClient) -> float:
    times = []
    for _ in range(20):
        began = time.monotonic()
        sender.publish(lab.topic("nobody"), b"")
        times.append(1e3 * (time.monotonic() - began))
    return round(statistics.median(times), 2)
