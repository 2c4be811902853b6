"""One link for several tasks: each gets its namespace's messages, and none holds up or ends the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from edge_agent.messaging.link_views import MAX_WAITING, LinkView, SharedLink
from protocol.errors import Reason, Refused, Transient
from runtime.mqtt.link import LinkCounters, Message, Will
from tests.support.services import beside, until


class HandLink:
    """A link whose messages the test gives."""

    def __init__(self) -> None:
        self.connected, self.resumed, self.why, self.until, self.since = True, False, "connected", None, 0.0
        self.chunk_bytes, self.counters = 65536, LinkCounters()
        self.acked: list[str] = []
        self.subscribed: list[tuple[tuple[str, int], ...]] = []
        self.ended: list[str] = []
        self.will: Any = None
        self._queue: asyncio.Queue[Message] = asyncio.Queue()

    def give(self, topic: str) -> None:
        self._queue.put_nowait(Message(topic, b"x", _acknowledge=lambda: self.acked.append(topic)))

    async def messages(self) -> AsyncIterator[Message]:
        while True:
            yield await self._queue.get()

    async def subscribe_again(self, filters: tuple[tuple[str, int], ...]) -> None:
        self.subscribed.append(filters)

    def reconnect(self, because: str) -> None:
        self.ended.append(because)

    async def run(self, *, on_connect: Any = None, will: Any = None) -> None:
        self.will = will
        await on_connect()
        await asyncio.Event().wait()


FILTERS = (("lichen/v1/f~b/b/task", 1),)
WILL = Will("lichen/v1/f/d/d/up/state", b"offline")


@asynccontextmanager
async def shared() -> AsyncIterator[tuple[HandLink, SharedLink, LinkView, LinkView]]:
    link: Any = HandLink()
    one = SharedLink(link)
    main, further = one.main("f"), one.further("f~b", FILTERS)
    async with beside(one.run(), main.run(on_connect=_nothing, will=WILL)):
        yield link, one, main, further


async def _nothing() -> None:
    return


async def next_of(view: LinkView) -> str:
    async with asyncio.timeout(5):
        async for message in view.messages():
            message.ack()
            return message.topic
    raise AssertionError


async def test_each_task_gets_the_messages_of_its_namespace() -> None:
    async with shared() as (link, _, main, further), beside(further.run(on_connect=_nothing, will=WILL)):
        for topic in (
            "lichen/v1/f~b/b/task",
            "lichen/v1/f/b/task",
            "no lichen topic",
            "lichen/v1/f~c/b/task",
        ):
            link.give(topic)
        assert await next_of(further) == "lichen/v1/f~b/b/task"
        found = [await next_of(main) for _ in range(2)]
        assert found == ["lichen/v1/f/b/task", "no lichen topic"]
        await until(lambda: "lichen/v1/f~c/b/task" in link.acked)
        assert link.will is WILL


async def test_a_task_that_does_not_run_holds_up_no_acknowledgement() -> None:
    async with shared() as (link, _, main, further):
        link.give("lichen/v1/f~b/b/task")
        link.give("lichen/v1/f/b/task")
        assert await next_of(main) == "lichen/v1/f/b/task"
        assert link.acked[0] == "lichen/v1/f~b/b/task"
        async with beside(further.run(on_connect=_nothing)):
            await until(lambda: link.subscribed == [FILTERS])  # the retained ones come again


async def test_a_task_that_is_not_built_yet_leaves_its_announcement_to_no_other() -> None:
    link: Any = HandLink()
    one = SharedLink(link)
    main = one.main("f")
    async with beside(one.run(), main.run(on_connect=_nothing, will=WILL)):
        link.give("lichen/v1/f~b/b/task")
        link.give("lichen/v1/f/b/task")
        assert await next_of(main) == "lichen/v1/f/b/task"
        further = one.further("f~b", FILTERS)
        async with beside(further.run(on_connect=_nothing)):
            await until(lambda: link.subscribed == [FILTERS])  # the retained ones come again


async def test_a_task_that_starts_while_the_link_connects_gets_what_came_before() -> None:
    link: Any = HandLink()
    link.connected = False
    one = SharedLink(link)
    main, further = one.main("f"), one.further("f~b", FILTERS)
    async with beside(one.run()):
        link.give("lichen/v1/f~b/b/task")
        await until(lambda: link.acked)
        async with beside(further.run(on_connect=_nothing)):
            assert link.subscribed == []
            link.connected = True
            async with beside(main.run(on_connect=_nothing, will=WILL)):  # greets
                await until(lambda: link.subscribed == [FILTERS])


async def test_a_task_that_ends_with_a_full_queue_releases_all_its_messages() -> None:
    async with shared() as (link, _, main, further):
        topics = [f"lichen/v1/f~b/d/d/down/blob/{i}" for i in range(MAX_WAITING + 9)]
        async with beside(further.run(on_connect=_nothing)):
            await asyncio.sleep(0)
            for topic in topics:
                link.give(topic)
            link.give("lichen/v1/f/b/task")
            await asyncio.sleep(0.05)
            assert link.acked == [], "bounded: the link's own limits hold"
        assert await next_of(main) == "lichen/v1/f/b/task"
        assert link.acked[:-1] == topics


async def test_a_further_task_cannot_end_the_connection() -> None:
    async with shared() as (link, _, main, further), beside(further.run(on_connect=_nothing)):
        await until(lambda: len(link.subscribed) == 1)
        further.reconnect("no task came")
        await until(lambda: len(link.subscribed) == 2)
        assert link.ended == []
        main.reconnect("the certificate was renewed")
        assert link.ended == ["the certificate was renewed"]


async def test_every_task_greets_at_a_connect_whatever_the_others_do() -> None:
    greeted: list[str] = []

    async def refused() -> None:
        raise Refused(Reason.TOO_LARGE, "a state of a megabyte")

    async def lost() -> None:
        raise Transient("the connection ended")

    async def greets() -> None:
        greeted.append("c")

    async with shared() as (link, one, _, further):
        link.connected = False
        third, fourth = one.further("f~c", ()), one.further("f~d", ())
        runs = (further.run(on_connect=refused), third.run(on_connect=lost), fourth.run(on_connect=greets))
        async with beside(*runs):
            with pytest.raises(Transient, match="the connection ended"):
                await one.greet()
            assert greeted == ["c"]
