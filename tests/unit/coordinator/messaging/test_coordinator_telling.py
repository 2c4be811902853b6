"""Answers are queued: a broker that is slow to take them never stops the coordinator from listening."""

import asyncio

from coordinator.messaging import receipts
from protocol import messages
from protocol.messages import Fetch
from protocol.topics import Kind, device_topic
from runtime.mqtt.link import Message
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, frame, header, tiny_task


async def test_no_message_waits_for_the_puback_of_its_answer(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine={"refusals": 0}) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        made.link.hold = asyncio.Event()
        update = frame(header("a", 1, made.app.driver.state.manifest))
        fetch = messages.encode(Fetch(digest="0" * 64, first=0, count=1, chunk_bytes=1024))
        given = [(Kind.UPDATE, update)] + [(Kind.UPDATE, b"%d" % n) for n in range(300)]
        given += [(Kind.FETCH, fetch)] * 20
        acknowledged: list[str] = []
        for kind, payload in given:
            topic = device_topic(FLEET, "a", kind)
            async with asyncio.timeout(5):
                await made.app.dispatcher.dispatch(
                    Message(topic, payload, False, lambda: acknowledged.append("x"))
                )
        await made.until(lambda: len(acknowledged) == len(given))
        assert tuple(made.app.driver.state.delivered) == ("a",)
        assert made.app.receipts.queue.qsize() <= receipts.PER_DEVICE
        assert made.app.receipts.dropped >= len(given) - receipts.PER_DEVICE - receipts.SENDERS
        made.link.hold.set()
        await made.app.receipts.drained()
        assert made.link.receipts("a")[0].status == "accepted"
        assert not made.app.receipts._waiting, "nothing is kept of a device that was answered"
        await made.give("b", Kind.UPDATE, frame(header("b", 1, made.app.driver.state.manifest)))
        assert made.link.receipts("b")[0].status == "accepted"


async def test_one_devices_flood_leaves_room_for_the_others(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        made.link.hold = asyncio.Event()
        for _ in range(500):
            made.app.receipts.send_accepted("greedy", 1, "0" * 64)
        made.app.receipts.send_accepted("modest", 1, "1" * 64)
        made.link.hold.set()
        await made.app.receipts.drained()
        assert len(made.link.receipts("modest")) == 1
        assert len(made.link.receipts("greedy")) == receipts.PER_DEVICE
