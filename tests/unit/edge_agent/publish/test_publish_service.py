"""What is published, when, and what is dropped: over a link that keeps what is sent."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from edge_agent.publish.home_assistant import filter_of, node_of
from edge_agent.publish.service import MAX_THERE, MAX_WAITING, Publishing, predictions_link
from protocol.errors import Reason, Refused, Transient
from runtime.clock import SystemClock
from runtime.mqtt.link import Message
from tests.support.agent.link import FakeLink
from tests.support.sensors.publishing import line, manifest_of, settings_of
from tests.support.services import beside, until

CONFIG = f"homeassistant/sensor/{node_of('home', 'barn-1')}/{{}}/config"


class LocalLink(FakeLink):
    """The broker's side is the test."""

    def __init__(self, _settings: Any, client_id: str, **options: Any) -> None:
        super().__init__()
        self.client_id, self.options = client_id, options
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.refuses: Exception | None = None
        self.why, self.since, self.until, self.resumed = "connected", 0.0, None, False

    async def publish(self, topic: str, payload: bytes, **how: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        await super().publish(topic, payload, **how)

    async def run(self, **options: Any) -> None:
        self.options |= options
        await asyncio.Event().wait()

    async def messages(self) -> AsyncIterator[Message]:
        while True:
            yield await self.inbox.get()

    def last(self, topic: str) -> bytes | None:
        found = [payload for name, payload, _ in self.sent if name == topic]
        return found[-1] if found else None

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.on("/prediction")]


@asynccontextmanager
async def publishing(*, connect: bool = True, **mqtt: Any) -> AsyncIterator[tuple[Publishing, LocalLink]]:
    settings = settings_of(**mqtt)
    assert settings.infer.mqtt is not None
    clock, link = SystemClock(), predictions_link(settings, LocalLink)  # type: ignore[arg-type]
    assert isinstance(link, LocalLink)
    made = Publishing(settings, settings.infer.mqtt, link, clock, random.Random(1))
    link.connected = connect
    async with beside(*made.services().values(), forever=True):
        if connect:
            await link.options["on_connect"]()
        yield made, link


async def test_each_prediction_goes_out_as_it_is_written() -> None:
    async with publishing(topic="site/{device}/lichen", retain=True) as (made, link):
        made.offer([line(0), line(1)], manifest_of())
        await until(lambda: made.published == 2)
        assert link.said == [line(0), line(1)]
        assert [(topic, kept) for topic, _, kept in link.sent] == [
            ("site/barn-1/lichen/availability", True),
            ("site/barn-1/lichen/prediction", True),
            ("site/barn-1/lichen/prediction", True),
        ]
        assert link.last("site/barn-1/lichen/availability") == b"online"
        will = link.options["will"]
        assert (will.topic, will.payload, will.retain) == (
            "site/barn-1/lichen/availability",
            b"offline",
            True,
        )
        await made.send_offline()
        assert link.last("site/barn-1/lichen/availability") == b"offline"


async def test_a_burst_is_bounded_and_the_newest_stay() -> None:
    async with publishing() as (made, link):
        made.offer([line(i) for i in range(MAX_WAITING + 10)], manifest_of())
        await until(lambda: made.published == MAX_WAITING)
        assert [said["t"] for said in link.said] == [2.5 + i for i in range(10, MAX_WAITING + 10)]
        assert made.dropped == 10


async def test_with_a_pace_the_newest_alone_goes_out() -> None:
    async with publishing(every_s=0.2) as (made, link):
        for i in range(20):
            made.offer([line(i)], manifest_of())
            await asyncio.sleep(0.01)
        await until(lambda: made.dropped + made.published == 20)
        assert link.said[0] == line(0), "the first one at once"
        assert link.said[-1] == line(19), "and the newest at last"
        assert made.dropped > made.published


async def test_while_the_broker_is_away_only_the_newest_is_kept() -> None:
    async with publishing(connect=False) as (made, link):
        link.why, link.until = "no broker there", 5.0
        made.offer([line(i) for i in range(5)], manifest_of())
        await asyncio.sleep(0.02)
        assert (link.sent, made.dropped) == ([], 4)
        (wait,) = made.waits()
        assert (wait.what, wait.why, wait.until) == ("predictions", "no broker there", 5.0)
        await made.send_offline()
        link.connected = True
        await link.options["on_connect"]()
        await until(lambda: made.published == 1)
        assert link.said == [line(4)]
        assert [*made.waits()] == []


async def test_what_the_broker_does_not_take_is_counted_and_the_next_one_is_tried() -> None:
    async with publishing() as (made, link):
        link.refuses = Refused(Reason.TOO_LARGE, "a packet of 9 bytes; the broker takes at most 1")
        with capture_logs() as logs:
            made.offer([line(0), line(1)], manifest_of())
            await until(lambda: made.dropped == 2)
        assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1, "said once"
        assert "at most 1" in made.status()["predictions_to"]["refused"]
        link.refuses = Transient("no PUBACK")
        made.offer([line(2)], manifest_of())
        await until(lambda: made.dropped == 3)
        link.refuses = None
        made.offer([line(3)], manifest_of())
        await until(lambda: made.published == 1)
        assert link.said == [line(3)]


async def test_sensors_are_announced_with_the_first_prediction_and_on_every_connect() -> None:
    async with publishing(home_assistant=True) as (made, link):
        assert "with the first prediction" in made.status()["predictions_to"]["home_assistant"]
        made.offer([line(0)], manifest_of("mood"))
        await until(lambda: made.published == 1)
        order = [topic for topic, _, _ in link.sent]
        assert order.index(CONFIG.format("mood")) < order.index("lichen/barn-1/prediction")
        assert made.status()["predictions_to"]["home_assistant"] == "sensors: label, mood"
        made.offer([line(1)], manifest_of("mood"))
        await until(lambda: made.published == 2)
        assert len(link.on("label/config")) == 1, "a new version of the same targets is no news"
        await link.options["on_connect"]()
        await until(lambda: len(link.on("mood/config")) == 2)
        assert len(link.on("label/config")) == 2


async def test_the_birth_message_brings_them_again() -> None:
    async with publishing(home_assistant=True, birth_topic="ha/says") as (made, link):
        assert ("ha/says", 1) in link.options["filters"]
        made.offer([line(0)], manifest_of())
        await until(lambda: len(link.on("label/config")) == 1)
        link.inbox.put_nowait(Message("ha/says", b"offline"))
        link.inbox.put_nowait(Message("ha/says", b"online"))
        await until(lambda: len(link.on("label/config")) == 2)
        assert {kept for topic, _, kept in link.sent if topic.endswith("/config")} == {True}


async def test_what_is_announced_and_not_wanted_any_more_is_removed() -> None:
    async with publishing(home_assistant=True) as (made, link):
        old = Message(CONFIG.format("old"), b"{}", retain=True)
        link.inbox.put_nowait(old)
        await asyncio.sleep(0.05)
        assert link.on("/config") == [], "no model has predicted yet: nobody knows what is right"
        made.offer([line(0)], manifest_of("mood", "steps"))
        await until(lambda: link.last(CONFIG.format("old")) == b"")
        for name in ("label", "mood", "steps"):  # the broker gives back what was published
            link.inbox.put_nowait(Message(CONFIG.format(name), b"{}"))
        await until(link.inbox.empty)
        made.offer([line(1)], manifest_of("mood"))
        await until(lambda: link.last(CONFIG.format("steps")) == b"")
        assert link.last(CONFIG.format("mood")) != b""
        assert link.last(CONFIG.format("label")) != b""


async def test_switched_off_the_sensors_of_before_are_removed() -> None:
    async with publishing(home_assistant=False) as (_, link):
        assert link.options["filters"] == [(filter_of("home", "barn-1", "homeassistant"), 0)]
        link.inbox.put_nowait(Message(CONFIG.format("label"), b"{}", retain=True))
        await until(lambda: link.last(CONFIG.format("label")) == b"")


async def test_a_broker_that_says_anything_takes_no_memory_and_clears_nothing_of_others() -> None:
    async with publishing(home_assistant=True) as (made, link):
        for topic in (
            "lichen/other/availability",
            CONFIG.format("a/b"),
            "homeassistant/sensor/lamp/state/config",
        ):
            link.inbox.put_nowait(Message(topic, b"{}", retain=True))
        for n in range(2 * MAX_THERE):
            link.inbox.put_nowait(Message(CONFIG.format(f"old{n}"), b"{}", retain=True))
        await until(link.inbox.empty)
        assert len(made._there) == MAX_THERE
        made.offer([line(0)], manifest_of())
        await until(lambda: len(made._there) == 0)
        cleared = {topic for topic, payload, _ in link.sent if not payload}
        assert len(cleared) == MAX_THERE
        assert all(topic.startswith(CONFIG.format("old").removesuffix("/config")) for topic in cleared)


async def test_an_announcement_that_failed_is_tried_again() -> None:
    async with publishing(home_assistant=True) as (made, link):
        link.refuses = Transient("no PUBACK")
        made.offer([line(0)], manifest_of())
        await asyncio.sleep(0.05)
        link.refuses = None
        await until(lambda: len(link.on("label/config")) == 1)
        await until(lambda: made.published == 1)


@pytest.mark.parametrize(
    ("mqtt", "words"),
    [
        ({"topic": "a/+/b"}, "topic"),
        ({"topic": "{fleet}/a"}, "only {device} is filled in"),
        ({"topic": "$SYS/a"}, "must not begin or end with"),
        ({"birth_topic": "a/"}, "must not begin or end with"),
        ({"topic": "lichen/#"}, "must name one topic"),
        ({"discovery_prefix": "home/+"}, "must name one topic"),
        ({"password_file": "x"}, "password_file is given without username"),
        ({"every_s": 60, "expire_after_s": 30}, "expire_after_s is not above every_s"),
        ({"hots": "x"}, "hots"),
    ],
)
def test_a_wrong_setting_is_named(mqtt: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("{", r"\{")):
        settings_of(**mqtt)


def test_the_connection_is_made_as_it_is_configured() -> None:
    publish = settings_of(host="broker.local", port=8883, protocol="3.1.1", username="me", tls={}).infer.mqtt
    assert publish is not None
    link = publish.link()
    assert (link.host, link.port, link.protocol, link.username) == ("broker.local", 8883, "3.1.1", "me")
    assert link.tls is not None
    assert link.session_expiry_s == 0
