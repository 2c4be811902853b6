"""Fair turns, bounded bytes: a peer at full speed, slow senders, and what the others notice of them."""

import asyncio

import pytest

from coordinator.ingest import fair_queue as lanes_module
from coordinator.ingest.chunked_uploads import IDLE_S, Uploads
from coordinator.ingest.dispatcher import LANES
from coordinator.ingest.fair_queue import (
    BLOCKING_BUDGET_S,
    DEPTH,
    DEVICE_BYTES,
    GIVEN_BACK,
    TOTAL_BYTES,
    FairQueue,
)
from coordinator.messaging.log_rate_limit import A_SECOND, BURST, MAX_DEVICES, LogRateLimiter
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, BlobRef
from protocol.topics import Kind, device_topic
from runtime.mqtt.link import Message
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, frame, header, tiny_task
from tests.support.coordinator.uploads import chunks


class Hands:
    """Workers that handle a message when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lanes: FairQueue[int] = FairQueue(lambda: self.now)
        self.order: list[str] = []

    async def handle(self, count: int) -> None:
        for _ in range(count):
            device, _, size = await self.lanes.take()
            self.order.append(device)
            self.lanes.done(device, size)


async def test_devices_take_turns_and_each_keeps_its_order() -> None:
    hands = Hands()
    assert hands.lanes.most_bytes == 0
    for n in range(DEPTH):
        assert await hands.lanes.put("flood", n, 1)
    await hands.lanes.put("a", 0, 1)
    await hands.lanes.put("b", 0, 1)
    await hands.handle(DEPTH + 2)
    assert hands.order[:3] == ["flood", "a", "b"]
    assert hands.order.count("flood") == DEPTH
    assert hands.lanes.bytes == 0
    assert not hands.lanes._lanes


async def test_one_devices_messages_are_handled_one_at_a_time_in_order() -> None:
    hands = Hands()
    for n in range(3):
        await hands.lanes.put("a", n, 1)
    device, first, size = await hands.lanes.take()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await hands.lanes.take()  # the next of a waits until this one is done
    hands.lanes.done(device, size)
    assert (first, (await hands.lanes.take())[1]) == (0, 1)


async def test_a_reader_that_waits_for_a_lane_leaves_the_others_their_time() -> None:
    hands = Hands()
    for n in range(DEPTH):
        await hands.lanes.put("a", n, 1)
    for waiting in ("first", "second"):
        putting = asyncio.create_task(hands.lanes.put("a", 9, 1))
        await asyncio.sleep(0.01)
        assert not putting.done(), waiting
        await hands.handle(1)
        assert await putting


async def test_a_take_that_is_cancelled_loses_no_message() -> None:
    hands = Hands()
    taking = asyncio.create_task(hands.lanes.take())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    await hands.lanes.put("a", 7, 1)
    async with asyncio.timeout(1):
        assert (await hands.lanes.take())[1] == 7


async def test_a_full_lane_makes_the_reader_wait_until_its_patience_is_used_up(monkeypatch) -> None:
    monkeypatch.setattr(lanes_module, "BLOCKING_BUDGET_S", 0.05)
    loop = asyncio.get_running_loop()
    lanes: FairQueue[int] = FairQueue(loop.time)
    took = [await lanes.put("flood", n, 1) for n in range(DEPTH + 20)]
    assert took[:DEPTH] == [True] * DEPTH
    assert took[DEPTH:] == [False] * 20
    assert lanes.dropped == 20
    assert await lanes.put("a", 0, 1)  # others are not billed for it


async def test_waiting_for_a_lane_that_moves_is_no_drop() -> None:
    hands = Hands()
    for n in range(DEPTH):
        await hands.lanes.put("a", n, 1)
    putting = asyncio.create_task(hands.lanes.put("a", DEPTH, 1))
    await asyncio.sleep(0)
    assert not putting.done()
    await hands.handle(1)
    assert await putting


async def test_patience_comes_back() -> None:
    hands = Hands()
    hands.lanes._charge("a", BLOCKING_BUDGET_S)
    for n in range(DEPTH):
        await hands.lanes.put("a", n, 1)
    assert not await hands.lanes.put("a", DEPTH, 1)
    hands.now = BLOCKING_BUDGET_S / GIVEN_BACK
    assert hands.lanes._used_budget("a") == 0
    hands.lanes._charge("b", 1.0)
    assert set(hands.lanes._debts) == {"b"}


async def test_bytes_are_bounded_and_not_only_counts() -> None:
    hands = Hands()
    size = DEVICE_BYTES // 2
    assert await hands.lanes.put("a", 0, size)
    assert await hands.lanes.put("a", 1, size)
    hands.lanes._charge("a", BLOCKING_BUDGET_S)
    assert not await hands.lanes.put("a", 2, 1)
    for n in range(TOTAL_BYTES // size - 2):
        assert await hands.lanes.put(f"d{n}", 0, size)
    waiting = asyncio.create_task(hands.lanes.put("late", 0, size))
    await asyncio.sleep(0)
    assert not waiting.done()
    await hands.handle(1)
    assert await waiting
    assert hands.lanes.most_bytes <= TOTAL_BYTES


async def test_room_is_room_whoever_makes_it(monkeypatch) -> None:
    monkeypatch.setattr(lanes_module, "TOTAL_BYTES", 100)
    hands = Hands()
    await hands.lanes.put("stuck", 1, 50)
    await hands.lanes.put("quick", 2, 50)
    await hands.lanes.take()  # and nothing comes of it for now
    device, _, size = await hands.lanes.take()
    waiting = asyncio.ensure_future(hands.lanes.put("third", 3, 50))
    await asyncio.sleep(0)
    assert not waiting.done()
    hands.lanes.done(device, size)
    async with asyncio.timeout(1):
        assert await waiting


async def test_a_flood_costs_an_honest_device_a_few_turns_and_bounded_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lanes_module, "BLOCKING_BUDGET_S", 0.2)
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine={"refusals": 0}) as made:
        await made.online("honest", "flood")
        await made.phase("collecting")
        ingest, base = made.app.dispatcher, made.app.driver.state.manifest
        stop, sent = asyncio.Event(), 0
        noise = b"\xd9\xd9\xf7" + bytes(60_000)

        async def flood() -> None:
            nonlocal sent
            while not stop.is_set():
                await ingest.dispatch(Message(device_topic(FLEET, "flood", Kind.UPDATE), noise, False, None))
                sent += 1  # no pause of its own: dispatching must let the others run

        flooding = asyncio.create_task(flood())
        await made.until(lambda: sent > 50)
        before = sent
        acknowledged = asyncio.Event()
        good = frame(header("honest", 1, base))
        topic = device_topic(FLEET, "honest", Kind.UPDATE)
        async with asyncio.timeout(10):
            await ingest.dispatch(Message(topic, good, False, acknowledged.set))
            await acknowledged.wait()
        assert tuple(made.app.driver.state.delivered) == ("honest",)
        await made.until(lambda: ingest.lanes.dropped > 100)
        stop.set()
        await flooding
        assert sent > before
        assert ingest.lanes.most_bytes <= (DEPTH + 2) * len(noise) + len(good)
        assert made.refusals()["flood", Reason.FULL.value] > 100
        assert LANES > 2


def test_the_log_says_of_a_flood_how_much_it_leaves_out() -> None:
    now = [0.0]
    voice = LogRateLimiter(lambda: now[0])
    said = [voice.unsaid("flood") for _ in range(1000)]
    assert said == [0] * int(BURST) + [None] * (1000 - int(BURST))
    assert voice.unsaid("other") == 0
    now[0] = 1 / A_SECOND
    assert voice.unsaid("flood") == 1000 - int(BURST)
    assert voice.unsaid("flood") is None
    for n in range(MAX_DEVICES + 9):
        voice.unsaid(f"d{n}")
    assert len(voice._devices) == MAX_DEVICES


def test_announcing_without_sending_gives_way_when_the_room_is_promised(tmp_path) -> None:
    now = [0.0]
    uploads = Uploads(chunks(tmp_path), 10_000, 20_000, lambda: now[0])
    uploads.enter_round(1)

    def pointer(text: bytes) -> BlobPointer:
        ref = BlobRef(digest=digest(text), size=10_000)
        return BlobPointer(task="tiny", round=1, blob=ref, chunk_bytes=1024)

    uploads.announce("squatter", pointer(b"a"), 10_000)
    uploads.announce("slow", pointer(b"b"), 10_000)
    with pytest.raises(Refused, match="announced already") as caught:
        uploads.announce("honest", pointer(b"c"), 10_000)
    assert caught.value.reason is Reason.FULL
    uploads.add("squatter", digest(b"a"), 0, bytes(1024))
    now[0] = IDLE_S - 1
    uploads.add("squatter", digest(b"a"), 0, bytes(1024))  # the same again is no progress
    uploads.add("slow", digest(b"b"), 0, bytes(1024))
    now[0] = IDLE_S + 1
    uploads.announce("honest", pointer(b"c"), 10_000)
    assert uploads.expects("slow", digest(b"b"))  # it sends, if slowly
    assert uploads.expects("honest", digest(b"c"))
    assert not uploads.expects("squatter", digest(b"a"))
    assert uploads.announced_bytes == 20_000
    uploads.enter_round(2)  # and with its round every upload is over
    assert uploads.announced_bytes == 0
    assert not (tmp_path / "uploads/1").exists()
