"""Topics, control messages and the task: what is accepted, and what a refusal names."""

import json

import pytest
from pydantic import ValidationError

from protocol import messages
from protocol.base import MAX_NAME
from protocol.errors import Reason, Refused
from protocol.messages import BlobPointer, BlobRef, Fetch, Metric, Offer, Receipt, State, Want, decode, encode
from protocol.tasks.network import Network
from protocol.tasks.task import Modality, Task
from protocol.topics import (
    MAX_SLASHES,
    MAX_TOPIC_BYTES,
    Kind,
    broadcast_topic,
    coordinator_filters,
    device_filters,
    device_topic,
    parse,
    ping_topic,
)

DIGEST = "0123456789abcdef" * 4


def refused(payload, *expected):
    with pytest.raises(Refused) as caught:
        decode(payload, *expected)
    return caught.value


def test_a_message_comes_back_as_its_kind():
    receipt = Receipt(
        task="t", round=3, digest=DIGEST, status="refused", reason=Reason.NON_FINITE, detail="w"
    )
    want = Want(digest=DIGEST, missing=((0, 3), (7, 7)))
    assert decode(encode(receipt), Receipt, Want) == receipt
    assert decode(encode(want), Receipt, Want) == want
    assert decode(encode(State(status="online", device="d1")), State).modalities == {}


def test_an_unknown_field_of_a_later_release_is_ignored():
    payload = json.loads(encode(Offer(task="t", round=1, base=DIGEST, base_size=9, closes_in_s=1.5)))
    assert decode(json.dumps(payload | {"new_in_2": [1]}).encode(), Offer).round == 1


@pytest.mark.parametrize(
    ("payload", "culprit"),
    [
        (b"", "message"),
        (b"\xff\xfe", "message"),
        (b"[]", "message"),
        (b'{"kind": "state", "status": 5, "device": "d"}', "state.status"),
        (b'{"kind": "state", "status": "Not a word", "device": "d"}', "state.status"),
        (b'{"kind": "state", "status": "online", "device": "a/b"}', "state.device"),
        (b'{"kind": "state", "status": "online", "device": "d#"}', "state.device"),
        (b'{"kind": "state", "status": "online", "device": "d", "chunk_bytes": 1}', "state.chunk_bytes"),
        (b'{"kind": "metric", "device": "d", "metrics": {"loss": NaN}}', "metric.metrics.loss"),
        (b'{"kind": "metric", "device": "d", "metrics": {"loss": 1e999}}', "metric.metrics.loss"),
        (b'{"kind": "state", "status": "online", "device": "d", "windows": -1}', "state.windows"),
        (b'{"kind": "state", "status": "online", "device": "d", "windows": true}', "state.windows"),
        (b'{"kind": "state", "status": "online", "device": "d", "windows": "7"}', "state.windows"),
    ],
)
def test_a_wrong_field_is_named(payload, culprit):
    error = refused(payload, State, Metric)
    assert error.reason is Reason.MALFORMED
    assert culprit in error.detail


def test_a_message_on_the_wrong_topic_is_refused():
    assert (
        "expected Receipt or Want, got State"
        in refused(encode(State(status="online", device="d1")), Receipt, Want).detail
    )


def test_size_is_bounded_before_parsing():
    assert refused(b" " * (messages.MAX_MESSAGE_BYTES + 1), State).reason is Reason.TOO_LARGE


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'{"kind":' * 10_000])
def test_deep_nesting_is_refused(nested):
    assert refused(nested, State).reason is Reason.MALFORMED


def test_a_blob_has_a_bounded_size():
    with pytest.raises(ValidationError):
        BlobPointer(
            task="t", round=0, blob=BlobRef(digest=DIGEST, size=messages.MAX_BLOB_BYTES + 1), chunk_bytes=1024
        )
    with pytest.raises(ValidationError):
        Fetch(digest=DIGEST, first=0, count=65, chunk_bytes=1024)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_topic_comes_back(kind):
    if kind.value.startswith("b/"):
        route = parse(broadcast_topic("f1", kind))
        assert (route.fleet, route.kind, route.device) == ("f1", kind, None)
    elif kind in {Kind.UP_BLOB, Kind.DOWN_BLOB}:
        route = parse(device_topic("f1", "d1", kind, DIGEST, 41))
        assert (route.kind, route.digest, route.index) == (kind, DIGEST, 41)
    else:
        route = parse(device_topic("f1", "d1", kind))
        assert (route.fleet, route.kind, route.device, route.digest) == ("f1", kind, "d1", None)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "lichen",
        "lichen/v2/f/b/task",
        "lichen/v1/f/b/state",
        "lichen/v1/f/d/dev/up/offer",
        "lichen/v1/f/d/dev/down/state",
        "lichen/v1/f/d/dev/up/state/more",
        "lichen/v1/f/d//up/state",
        "lichen/v1/f/d/d.ev/up/state",
        "lichen/v1/+/d/dev/up/state",
        "lichen/v1/f/d/#",
        "lichen/v1/f/d/dev/up/blob",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}-",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}-0-0",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}.0",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}/0",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST[:-1]}-0",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST.upper()}-0",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}--1",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}-01",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}-1048576",
        f"lichen/v1/f/d/dev/up/blob/{DIGEST}-\u0661",
        f"lichen/v1/f/d/dev/up/state/{DIGEST}-0",
        "lichen/v1/f/d/dev/ping/more",
        "lichen/v1/f/b/ping",
        "$SYS/broker/uptime",
    ],
)
def test_a_strange_topic_is_refused(topic):
    with pytest.raises(Refused) as caught:
        parse(topic)
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("kind", Kind)
def test_the_longest_topic_of_each_kind_is_one_that_aws_takes(kind):
    name, blob = "n" * MAX_NAME, kind in {Kind.UP_BLOB, Kind.DOWN_BLOB}
    if kind.value.startswith("b/"):
        topic = broadcast_topic(name, kind)
    else:
        topic = device_topic(name, name, kind, *((DIGEST, (1 << 20) - 1) if blob else ()))
    assert topic.count("/") <= MAX_SLASHES
    assert len(topic.encode()) <= MAX_TOPIC_BYTES
    filters = (
        *(topic for topic, _ in device_filters(name, name)),
        *coordinator_filters(name),
        ping_topic(name),
        ping_topic(name, name),
    )
    assert max(f.count("/") for f in filters) <= MAX_SLASHES
    assert len(device_filters(name, name)) <= 8, "AWS takes 8 filters in one SUBSCRIBE"


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "a b", ".a", "a" * 57, "a.b", "a\n"])
def test_a_name_that_fits_no_topic_level_makes_no_topic(name):
    for make in (
        lambda: device_topic(name, "d", Kind.STATE),
        lambda: device_topic("f", name, Kind.STATE),
        lambda: broadcast_topic(name, Kind.TASK),
        lambda: device_filters("f", name),
        lambda: coordinator_filters(name),
    ):
        with pytest.raises(ValueError, match="is no name"):
            make()


def test_kinds_and_blobs_are_not_mixed_up():
    with pytest.raises(ValueError, match="broadcast"):
        device_topic("f", "d", Kind.TASK)
    with pytest.raises(ValueError, match="device topic"):
        broadcast_topic("f", Kind.STATE)
    with pytest.raises(ValueError, match="names no blob"):
        device_topic("f", "d", Kind.STATE, DIGEST, 0)
    for digest, index in ((None, None), (DIGEST, None), (DIGEST, -1), (DIGEST, 1 << 20), ("abc", 0)):
        with pytest.raises(ValueError, match="needs a SHA-256"):
            device_topic("f", "d", Kind.UP_BLOB, digest, index)


def accelerometer(name="accelerometer"):
    return Modality(name=name, channels=3, rate_hz=50)


@pytest.mark.parametrize("sign", ["\x1b", "\x9b", "\n", "\u202e", "\u2066", "\u2028", "\u200b", "\ufeff"])
def test_words_for_people_hold_nothing_that_a_terminal_obeys_or_that_turns_them_round(sign):
    state = State(status="online", device="d", refuses="no modality of the task: ÄÖ \u65e5\u672c")
    with pytest.raises(Refused, match="refuses"):
        decode(encode(state).replace(b"of the", json.dumps(sign)[1:-1].encode()), State)
    assert decode(encode(state), State) == state


def test_a_task_says_what_is_wrong_with_it():
    with pytest.raises(ValidationError, match="modality named twice: accelerometer"):
        Task(name="t", labels=("a", "b"), modalities=(accelerometer(), accelerometer()))
    with pytest.raises(ValidationError, match="label named twice: a"):
        Task(name="t", labels=("a", "a"), modalities=(accelerometer(),))
    with pytest.raises(ValidationError, match="unknown modalities: gyro"):
        Task(
            name="t",
            labels=("a", "b"),
            modalities=(accelerometer(),),
            network=Network.model_validate({"encoders": {"gyro": {}}}),
        )
    with pytest.raises(ValidationError, match="modality 'label'"):
        Task(name="t", labels=("a", "b"), modalities=(accelerometer("label"),))


def test_a_task_knows_its_modalities():
    task = Task(name="t", labels=("a", "b"), modalities=(accelerometer(), accelerometer("gyroscope")))
    assert task.modality_names == ("accelerometer", "gyroscope")
    assert task.samples("gyroscope") == 128
    assert task.encoder("gyroscope").kind == "cnn1d"
    with pytest.raises(KeyError, match="has no modality 'ecg'; it has accelerometer, gyroscope"):
        task.modality("ecg")
