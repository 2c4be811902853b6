"""The topics of the wire, letter by letter: who writes and reads them, and what is none of them."""

import pytest
from pydantic import TypeAdapter, ValidationError

from protocol.base import MAX_NAME
from protocol.errors import Reason, Refused
from protocol.topics import (
    MAX_SLASHES,
    MAX_TASK_NAME,
    MAX_TOPIC_BYTES,
    Kind,
    Namespace,
    Route,
    broadcast_topic,
    coordinator_filters,
    device_filters,
    device_topic,
    ingest_filters,
    is_namespace,
    leader_filters,
    namespace,
    parse,
    ping_topic,
    split_namespace,
    task_name_trouble,
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


def test_a_further_task_has_a_level_of_its_own_beside_the_fleets() -> None:
    space = namespace("f", "sound")
    assert (namespace("f", None), space) == ("f", "f~sound")
    assert split_namespace("f") == ("f", None)
    assert split_namespace(space) == ("f", "sound")
    assert parse(device_topic(space, "d1", Kind.UP_BLOB, SHA, 0)) == Route(space, Kind.UP_BLOB, "d1", SHA, 0)
    assert parse(broadcast_topic(space, Kind.TASK)) == Route(space, Kind.TASK)
    assert parse(ping_topic(space, "d1")) == Route(space, Kind.PING, "d1")
    assert device_filters(space, "d1")[0] == ("lichen/v1/f~sound/d/d1/down/#", 1)
    assert coordinator_filters(space) == ("lichen/v1/f~sound/d/+/up/#",)
    assert leader_filters(space) == ("lichen/v1/f~sound/d/+/up/state",)
    assert ingest_filters(space, shared=True)[0] == "$share/ingest-f~sound/lichen/v1/f~sound/d/+/up/update"


def test_the_longest_topic_of_a_further_task_fits_every_broker() -> None:
    name = "n" * MAX_NAME
    topic = device_topic(namespace(name, "t" * MAX_TASK_NAME), name, Kind.DOWN_BLOB, SHA, LAST)
    assert len(topic) <= MAX_TOPIC_BYTES
    assert topic.count("/") <= MAX_SLASHES
    assert "at most 40" in task_name_trouble("t" * (MAX_TASK_NAME + 1))


@pytest.mark.parametrize(
    "text", ["", "~", "f~", "~sound", "f~a~b", "f~a.b", "f.x~a", "f~+", "f~a/b", "f~a\n", f"f~{'t' * 41}"]
)
def test_what_is_no_namespace_is_refused_everywhere(text: str) -> None:
    assert not is_namespace(text)
    with pytest.raises(ValidationError):
        TypeAdapter(Namespace).validate_python(text)
    with pytest.raises(ValueError, match=r"is no name|has at most"):
        split_namespace(text)
    with pytest.raises(ValueError, match=r"is no name|has at most"):
        broadcast_topic(text, Kind.TASK)
    with pytest.raises(Refused):
        parse(f"lichen/v1/{text}/b/task")


def test_a_device_is_never_named_like_a_namespace() -> None:
    with pytest.raises(ValueError, match="device"):
        device_topic("f", "d~x", Kind.STATE)
    with pytest.raises(Refused, match="'d~x' is no name"):
        parse("lichen/v1/f/d/d~x/up/state")
