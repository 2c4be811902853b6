"""Sensors and labels on a local broker: a real one; and what messages mean, by themselves."""

import asyncio
import math
from contextlib import aclosing

import numpy as np
import pytest

from edge_agent.sources import LabelBatch
from edge_agent.sources.mqtt.frames import TopicFrame
from edge_agent.sources.mqtt.source import MAX_VALUES
from edge_agent.sources.mqtt.values import Marker, MqttLabel, MqttModality, TopicGauge
from edge_agent.sources.payloads import BadPayload, loads
from edge_agent.sources.registry import open_source
from edge_agent.sources.task_match import matching_modalities
from models.data.labels.rules import Labels
from models.data.text_ngrams import counts_of
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Target, Task
from runtime.clock import SystemClock
from runtime.mqtt.link import Message
from tests.support.sensors.source_cases import tell
from tests.support.services import until

TASK = Task(
    name="home",
    labels=("empty", "busy"),
    modalities=(Modality(name="climate", channels=2, rate_hz=1, unit="degC"),),
    targets=(Target(name="people", kind="regression"),),
)


def source_of(folder, broker_port, **keys):
    return open_source(
        {"kind": "mqtt", "port": broker_port, **keys}, "source[0]", folder, None, SystemClock()
    )


ROOM = {
    "channels": [
        {"topic": "z2m/room", "path": "temperature"},
        {"topic": "z2m/room", "path": "humidity"},
    ]
}
DOOR = {
    "every_s": 0.1,
    "hold_s": 60,
    "channels": [{"topic": "z2m/door", "path": "contact"}, {"topic": "lamp/+/state"}],
}


async def test_a_real_broker_gives_messages_beats_of_several_topics_and_labels(tmp_path, broker):
    labels = [{"topic": "home/label"}, {"topic": "home/people", "target": "people", "path": "count"}]
    source = source_of(tmp_path, broker.port, modalities={"climate": ROOM, "doors": DOOR}, labels=labels)
    source.follow(TASK)
    assert source.channels == {"climate": 2, "doors": 2}
    tell(broker.port, "z2m/room", '{"temperature": -40, "humidity": 0}', retain=True)
    tell(broker.port, "home/label", "busy", retain=True)

    async def speak():
        await until(lambda: "connected to" in source.state)
        for topic, payload in [
            ("z2m/door", '{"contact": false}'),
            ("z2m/room", "garbage"),
            ("z2m/room", '{"temperature": 21.5, "humidity": 40}'),
            ("lamp/one/state", "ON"),
            ("home/people", '{"count": 3}'),
            ("home/label", "asleep"),
        ]:
            await asyncio.to_thread(tell, broker.port, topic, payload)

    speaker = asyncio.create_task(speak())
    climate, doors, told = [], [], []
    async with asyncio.timeout(10), aclosing(source.samples()) as stream:
        async for batch in stream:
            if isinstance(batch, LabelBatch):
                told.append((batch.target, batch.label[0]))
            else:
                (climate if batch.modality == "climate" else doors).append(batch)
            if len(doors) >= 3 and climate and len(told) == 3:
                break
    await speaker
    assert climate[0].values.tolist() == [[21.5, 40]], "what was retained is of unknown age"
    assert doors[-1].values.tolist() == [[0, 1]]
    np.testing.assert_allclose(np.diff([b.t[0] for b in doors]), 0.1, atol=1e-6)
    assert told[0] == ("label", 1.0), "a retained label holds"
    assert ("people", 3.0) in told
    assert math.isnan(told[-1][1]), "a word that is no class ends what held"
    assert source.counters["retained_ignored"] == 1
    assert source.counters["bad_payloads"] == 2, "garbage, and a word that is no class"
    assert "'asleep' is not a class; known: empty, busy" in source.state


def gauge(**keys):
    return TopicGauge("m", MqttModality.model_validate(keys))


def take(taker, topic, payload, arrived, counters=None):
    value = payload if not isinstance(payload, bytes) else loads(payload)
    return list(taker.take(topic, value, arrived, {} if counters is None else counters))


def test_the_time_of_a_payload_counts_unless_its_clock_is_wrong():
    one = gauge(channels=[{"topic": "a", "path": "v"}], time_path="seen", time_unit="iso8601")
    arrived, counters = 1_700_000_000.0, {}
    (right,) = take(one, "a", {"v": 1, "seen": "2023-11-14T22:13:10Z"}, arrived, counters)
    assert right.t[0] == arrived - 10
    (wrong,) = take(one, "a", {"v": 1, "seen": "1970-01-01T00:00:00Z"}, arrived, counters)
    assert wrong.t[0] == arrived
    assert counters == {"odd_times": 1}
    with pytest.raises(BadPayload, match="no time zone"):
        take(one, "a", {"v": 1, "seen": "2023-11-14T22:13:10"}, arrived)
    (ms,) = take(
        gauge(channels=[{"topic": "a", "path": "v"}], time_path="t", time_unit="ms"),
        "a",
        {"v": 1, "t": 1_700_000_000_500},
        arrived,
    )
    assert ms.t[0] == arrived + 0.5


def test_on_a_beat_old_values_are_a_gap_and_missed_beats_are_not_made_up():
    one = gauge(channels=[{"topic": "a"}, {"topic": "b"}], every_s=10, hold_s=25)
    assert list(one.beat(1003.0)) == []
    assert one.due == 1010
    take(one, "a", 1, 1004.0)
    assert list(one.beat(1010.0)) == [], "b has said nothing"
    take(one, "b", 2, 1015.0)
    (row,) = one.beat(1020.1)
    assert (row.t[0], row.values.tolist()) == (1020.0, [[1, 2]])
    assert list(one.beat(1030.0)) == [], "a is 26 s old"
    take(one, "a", 5, 1031.0)
    assert len(list(one.beat(1500.0))) == 0, "after a pause the beats begin anew"
    assert list(one.beat(1500.0)) == [], "and that value is old by then"


def test_on_a_beat_a_message_may_leave_out_some_of_its_channels():
    one = gauge(channels=[{"topic": "a", "path": "t"}, {"topic": "a", "path": "h"}], every_s=10, hold_s=100)
    take(one, "a", {"t": 1, "h": 2}, 1001.0)
    take(one, "a", {"h": 3}, 1002.0)
    assert list(one.beat(1003.0)) == []
    (row,) = one.beat(1010.0)
    assert row.values.tolist() == [[1, 3]]
    whole = gauge(channels=[{"topic": "a", "path": "t"}, {"topic": "a", "path": "h"}])
    with pytest.raises(BadPayload, match="nothing at 't' in"):
        take(whole, "a", {"h": 3}, 1002.0)


def test_words_and_booleans_are_numbers():
    one = gauge(channels=[{"topic": "a"}], factor=2.0, offset=1.0)
    values = [
        take(one, "a", payload, 0.0)[0].values[0, 0]
        for payload in (b"ON", b"false", b"21.5", b" 3 ", b"true")
    ]
    assert values == [3, 1, 44, 7, 3]
    own = gauge(channels=[{"topic": "a", "words": {"tilt": 0.5}}])
    assert take(own, "a", b'"tilt"', 0.0)[0].values[0, 0] == 0.5
    assert math.isnan(take(own, "a", b"null", 0.0)[0].values[0, 0]), "null is a gap"
    for wrong in (b"ON", b"[1]", b"{}"):
        with pytest.raises(BadPayload):
            take(own, "a", wrong, 0.0)


def marker(**keys):
    one = Marker(MqttLabel.model_validate({"topic": "l", **keys}))
    one.follow(TASK)
    return one


def test_labels_begin_and_end_intervals():
    one, held = marker(at_most_s=100), Labels(2)
    for payload, t in [(b"busy", 10.0), (b"", 20.0), (b"0", 30.0), (b"none", 40.0), (b"busy", 50.0)]:
        for batch in take(one, "l", payload, t):
            held.add(batch)
    for batch in one.beat(200.0):
        held.add(batch)
    start = np.array([5.0, 12, 22, 32, 42, 60, 160])
    np.testing.assert_array_equal(held.of(start, start + 5), [np.nan, 1, np.nan, 0, np.nan, 1, np.nan])
    assert list(one.beat(300.0)) == []


def test_a_lost_connection_ends_the_label_once():
    one = marker()
    assert list(one.end(5.0)) == []
    take(one, "l", b"busy", 10.0)
    (end,) = one.end(12.0)
    assert (end.t[0], math.isnan(end.label[0])) == (12.0, True)
    assert list(one.end(13.0)) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "neither modalities nor labels"),
        ({"modalities": {"m": {"channels": []}}}, r"modalities\.m\.channels: at least 1"),
        (
            {"modalities": {"m": {"channels": [{"topic": "a"}, {"topic": "b"}]}}},
            r"modalities\.m: channels of several topics have no common time: give every_s",
        ),
        ({"modalities": {"m": {"channels": [{"topic": "a/#/b"}]}}}, r"topic: 'a/#/b' is not a topic filter"),
        ({"modalities": {"m": {"channels": [{"topic": "a", "path": "x["}]}}}, "'x\\[' is not a path"),
        ({"modalities": {"m": {"chanels": []}}}, r"chanels: unknown key; did you mean 'channels'"),
        ({"labels": [{"topic": "a"}], "password_file": "gone", "username": "u"}, "password_file.*gone"),
    ],
)
def test_a_wrong_table_names_the_key(tmp_path, keys, words):
    with pytest.raises(Misconfigured, match=r"(?s)source\[0\].*" + words):
        source_of(tmp_path, 1883, **keys)


def test_labels_of_a_target_that_the_task_does_not_have_are_a_doubt(tmp_path):
    source = source_of(tmp_path, 1883, labels=[{"topic": "a", "target": "mood"}])
    (words,) = source.doubts(TASK)
    assert "labels for target 'mood': task 'home' has none" in words
    assert source.channels == {}


FRAMES = Task(
    name="home",
    labels=("empty", "busy"),
    modalities=(
        Modality(name="notes", kind="text", channels=32, rate_hz=0.1),
        Modality(name="embedding", kind="vector", channels=3, rate_hz=1),
        Modality(name="plain", channels=2, rate_hz=1),
    ),
)


def frame(name="embedding", task=FRAMES, **keys):
    one = TopicFrame(name, MqttModality.model_validate(keys))
    one.follow(task)
    return one


def test_a_message_is_a_vector_or_the_counts_of_a_text():
    vector = frame(vector={"topic": "v", "path": "values"}, factor=2.0, time_path="t")
    (row,) = take(vector, "v", {"values": [1, "2", 3.5], "t": 1005.0}, 1000.0)
    assert (row.modality, row.t.tolist(), row.values.tolist()) == ("embedding", [1005.0], [[2, 4, 7]])
    assert take(vector, "another", {"values": [1, 2, 3]}, 0.0) == []
    text = frame("notes", text={"topic": "n"})
    for payload in (b"the kettle boils", b'"the kettle boils"'):
        (row,) = take(text, "n", payload, 1.0)
        np.testing.assert_array_equal(row.values, counts_of(["the kettle boils"], 32))
    (row,) = take(text, "n", b"42", 1.0)
    np.testing.assert_array_equal(row.values, counts_of(["42"], 32))


@pytest.mark.parametrize(
    ("one", "payload", "words"),
    [
        (frame(vector={"topic": "v"}), [1, 2], "2 values: a list of 3 numbers is needed"),
        (frame(vector={"topic": "v"}), "1,2,3", "'1,2,3': a list of 3 numbers"),
        (frame(vector={"topic": "v"}), [1, 2, [3]], "is not a number"),
        (frame("notes", text={"topic": "v"}), {"text": 1}, "is not a text"),
        (frame("notes", text={"topic": "v", "path": "x"}), {"text": 1}, "nothing at 'x'"),
    ],
)
def test_a_message_that_is_no_vector_or_text_is_refused(one, payload, words):
    with pytest.raises(BadPayload, match=words):
        take(one, "v", payload, 0.0)


def test_a_task_of_another_kind_gets_nothing():
    for one in (frame("plain", vector={"topic": "v"}), frame("absent", text={"topic": "v"})):
        assert take(one, "v", [1, 2], 0.0) == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "one of channels, vector and text is needed .found none"),
        ({"text": {"topic": "a"}, "vector": {"topic": "a"}}, "found vector, text"),
        ({"text": {"topic": "a"}, "every_s": 1.0}, "each message is one text; leave it out"),
        ({"vector": {"topic": "a/#/b"}}, "is not a topic filter"),
    ],
)
def test_tables_of_vectors_and_texts_are_checked(tmp_path, table, words):
    with pytest.raises(Misconfigured, match=words):
        source_of(tmp_path, 1, modalities={"m": table})


async def test_texts_and_vectors_come_by_a_real_broker_as_the_task_says(tmp_path, broker):
    tables = {"notes": {"text": {"topic": "home/notes"}}, "embedding": {"vector": {"topic": "home/e"}}}
    source = source_of(tmp_path, broker.port, modalities=tables)
    assert matching_modalities(FRAMES, [source]) == ("notes", "embedding")
    source.follow(FRAMES)
    assert source.channels == {"notes": 32, "embedding": 3}

    async def speak():
        await until(lambda: "connected to" in source.state)
        for topic, payload in (("home/e", "[1]"), ("home/e", "[1, 2, 3]"), ("home/notes", "it boils")):
            await asyncio.to_thread(tell, broker.port, topic, payload)

    speaker = asyncio.create_task(speak())
    got = {}
    async with asyncio.timeout(10), aclosing(source.samples()) as stream:
        async for batch in stream:
            got[batch.modality] = batch.values
            if len(got) == 2:
                break
    await speaker
    assert got["embedding"].tolist() == [[1, 2, 3]]
    np.testing.assert_array_equal(got["notes"], counts_of(["it boils"], 32))
    assert source.counters["bad_payloads"] == 1
    assert "1 values: a list of 3 numbers is needed" in source.state


def test_rows_that_wait_for_the_agent_are_bounded_in_number_and_in_values(tmp_path):
    wide = FRAMES.modality("notes").model_copy(update={"channels": 4096})
    task = FRAMES.model_copy(update={"modalities": (wide, *FRAMES.modalities[1:])})
    source = source_of(tmp_path, 1, modalities={"notes": {"text": {"topic": "n"}}})
    source.follow(task)
    message = Message("n", b"it boils")
    for _ in range(300):
        source._take(message)
    assert len(source._batches) == MAX_VALUES // 4096
    assert source._waiting <= MAX_VALUES
    assert source.counters["dropped_samples"] == 300 - MAX_VALUES // 4096
