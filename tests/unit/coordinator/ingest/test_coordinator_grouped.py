"""Work in groups: one hop to a thread for all that waits, and each gets its own answer."""

import asyncio
import threading

import pytest

from coordinator.ingest import grouped
from coordinator.ingest.grouped import Grouped
from coordinator.messaging import receipts
from coordinator.messaging.receipts import AnswerQueue, ReceiptSender
from coordinator.messaging.sender import Sender
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.errors import Reason, Refused
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import FakeLink
from tests.support.coordinator.fake import FLEET


class Held:
    """Work whose first item waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.grouped: Grouped[int, int] = Grouped(self.work, 1)

    def work(self, item: int) -> int:
        if item == 0:
            assert self.go.wait(10)
        if item % 7 == 3:
            raise Refused(Reason.MALFORMED, f"{item} is wrong")
        return item * item


async def test_what_comes_during_a_group_is_the_next_one_and_each_gets_its_own_answer() -> None:
    held = Held()
    first = asyncio.create_task(held.grouped.do(0, 1))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(held.grouped.do(n, 1)) for n in range(1, 51)]
    await asyncio.sleep(0)
    held.go.set()
    found = await asyncio.gather(first, *rest, return_exceptions=True)
    assert held.grouped.groups == 2
    for n, one in enumerate(found):
        assert isinstance(one, Refused) if n % 7 == 3 else one == n * n


async def test_a_group_is_bounded_in_items_and_bytes_and_a_large_item_is_one_of_its_own() -> None:
    held = Held()
    tasks = [asyncio.create_task(held.grouped.do(0, 1))]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(held.grouped.do(7, 1)) for _ in range(grouped.MOST + 1)]
    tasks += [asyncio.create_task(held.grouped.do(7, grouped.MOST_BYTES + 1)) for _ in range(2)]
    await asyncio.sleep(0)
    held.go.set()
    await asyncio.gather(*tasks)
    assert held.grouped.groups == 5, "the first, a full one, the rest, and each large one"


async def test_who_gives_up_waiting_is_not_worked_on_and_a_fault_ends_in_an_answer() -> None:
    held = Held()
    first = asyncio.create_task(held.grouped.do(0, 1))
    await asyncio.sleep(0)
    gone = asyncio.create_task(held.grouped.do(1, 1))
    await asyncio.sleep(0)
    gone.cancel()
    held.go.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await gone
    broken: Grouped[int, float] = Grouped(lambda item: 1 / item, 1)
    one, other = await asyncio.gather(broken.do(0, 1), broken.do(0, 1), return_exceptions=True)
    assert isinstance(one, ZeroDivisionError)
    assert isinstance(other, ZeroDivisionError)
    assert await broken.do(2, 1) == 0.5


async def test_a_fault_that_no_code_declares_is_the_answer_to_its_item_alone() -> None:
    work: Grouped[int, float] = Grouped(lambda item: 1 / item, 1)
    found = await asyncio.gather(*(work.do(item, 1) for item in (4, 0, 2)), return_exceptions=True)
    assert work.groups == 1
    assert isinstance(found[1], ZeroDivisionError)
    assert found[::2] == [0.25, 0.5]


async def test_the_receipts_of_a_whole_fleet_have_room_and_a_flood_of_answers_has_not(monkeypatch) -> None:
    assert receipts.MOST_BYTES // receipts._ANSWER_BYTES > 50_000
    monkeypatch.setattr(receipts, "MOST_BYTES", 6_000 * receipts._ANSWER_BYTES)
    post = Sender(FakeLink(), FLEET)
    answers = ReceiptSender(post, WriteBehindBuffer(None, ManualClock()), None, "tiny", AnswerQueue())
    for n in range(5_000):
        answers.send_accepted(f"d{n}", 1, "0" * 64)
    assert answers.dropped == 0
    room = receipts.MOST_BYTES // receipts._ANSWER_BYTES - 5_000
    for n in range(room + 7):
        answers.send_accepted(f"e{n}", 1, "0" * 64)
    assert answers.dropped == 7
    sending = asyncio.create_task(answers.run())
    await answers.drained()
    sending.cancel()
    assert answers._bytes == 0
    assert not answers._waiting
