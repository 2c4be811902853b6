"""The topics of the wire, letter by letter: who writes and reads them, and what is none of them."""

import pytest

from protocol.errors import Reason, Refused
from protocol.topics import (
    Kind,
    Route,
    broadcast_topic,
    coordinator_filters,
    device_filters,
    device_topic,
    parse,
    ping_topic,
)

SHA = "a" * 64
LAST = (1 << 20) - 1


def test_an_agent_subscribes_to_its_own_topics_and_to_broadcasts() -> None:
    without_offers = (("lichen/v1/f/d/d1/down/#", 1), ("lichen/v1/f/b/task", 1), ("lichen/v1/f/b/model", 1))
    assert device_filters("f", "d1", learns=False) == without_offers
    assert device_filters("f", "d1") == (*without_offers, ("lichen/v1/f/b/offer", 0))


def test_the_coordinator_subscribes_to_what_devices_say() -> None:
    assert coordinator_filters("f") == ("lichen/v1/f/d/+/up/#",)


def test_each_side_pings_on_a_topic_of_its_own() -> None:
    assert ping_topic("f", "d1") == "lichen/v1/f/d/d1/ping"
    assert ping_topic("f") == "lichen/v1/f/b/ping"
    assert parse("lichen/v1/f/d/d1/ping") == Route("f", Kind.PING, "d1")


def test_a_device_topic_and_a_broadcast_are_not_mixed_up() -> None:
    assert device_topic("f", "d1", Kind.UPDATE) == "lichen/v1/f/d/d1/up/update"
    assert broadcast_topic("f", Kind.ROUND) == "lichen/v1/f/b/round"
    with pytest.raises(ValueError, match="is a broadcast topic"):
        device_topic("f", "d1", Kind.ROUND)
    with pytest.raises(ValueError, match="is a device topic"):
        broadcast_topic("f", Kind.UPDATE)
    assert parse("lichen/v1/f/b/round") == Route("f", Kind.ROUND)


def test_the_last_chunk_that_can_be_named() -> None:
    topic = device_topic("f", "d1", Kind.UP_BLOB, SHA, LAST)
    assert topic == f"lichen/v1/f/d/d1/up/blob/{SHA}-{LAST}"
    assert parse(topic) == Route("f", Kind.UP_BLOB, "d1", SHA, LAST)
    with pytest.raises(Refused):
        parse(topic.replace(str(LAST), str(LAST + 1)))


@pytest.mark.parametrize(
    ("kind", "sha", "index"),
    [
        (Kind.UP_BLOB, None, 0),
        (Kind.UP_BLOB, SHA, None),
        (Kind.UP_BLOB, SHA[1:], 0),
        (Kind.UP_BLOB, SHA, -1),
        (Kind.UP_BLOB, SHA, LAST + 1),
        (Kind.UPDATE, SHA, None),
        (Kind.UPDATE, None, 0),
    ],
)
def test_a_chunk_names_its_blob_and_index_and_nothing_else_does(kind, sha, index) -> None:
    with pytest.raises(ValueError, match=r"names no blob|needs a SHA-256"):
        device_topic("f", "d1", kind, sha, index)


@pytest.mark.parametrize("tail", ["d/d1/up/nose", "d/d1/down/nose_2", "b/nose"])
def test_what_a_later_release_may_say_is_told_from_nonsense(tail: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(f"lichen/v1/f/{tail}")
    assert refused.value.reason is Reason.UNKNOWN_KIND


@pytest.mark.parametrize(
    "topic",
    [
        "lichen/v2/f/b/task",
        "lichen/v1/f/b/state",
        "lichen/v1/f/d/d1/down/update",
        "lichen/v1/f/d/d1/up/blob",
        f"lichen/v1/f/d/d1/up/blob/{SHA[1:]}-0",
        f"lichen/v1/f/d/d1/up/blob/{SHA}-01",
        f"lichen/v1/f/d/d1/sideways/blob/{SHA}-0",
        "lichen/v1/f/b/Nose",
        "lichen/v1/f/x/d1/up/nose",
    ],
)
def test_what_is_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(topic)
    assert refused.value.reason is Reason.MALFORMED


def test_a_name_that_does_not_fit_is_named() -> None:
    tails = ("up/state", "ping", f"up/blob/{SHA}-0")
    devices = [f"lichen/v1/{names}/{tail}" for names in ("a.b/d/d1", "f/d/a.b") for tail in tails]
    for topic in (*devices, "lichen/v1/a.b/b/task"):
        with pytest.raises(Refused, match=r"'a\.b' is no name|write 'a-b'") as refused:
            parse(topic)
        assert refused.value.reason is Reason.MALFORMED
