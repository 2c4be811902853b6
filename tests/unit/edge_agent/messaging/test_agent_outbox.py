import asyncio
from contextlib import asynccontextmanager

import pytest

from edge_agent.config.agent import AgentSettings, OutboxSettings
from edge_agent.storage.round_ledger import FINAL, GRACE_S, MAX_RETRY_S, OF_THE_ROUND, RETRY_S, RoundLedger
from protocol.errors import Reason
from protocol.frames.frame import digest
from protocol.messages import BlobPointer, Offer, Receipt, Want
from runtime.concurrency.signals import Signal
from runtime.storage.spool import Spool
from tests.support.agent.link import FakeLink
from tests.support.agent.parts import outbox_of
from tests.support.clock import ManualClock
from tests.support.services import beside, until

SMALL = b"\xd9\xd9\xf7" + b"s" * 500
LARGE = bytes(range(256)) * 40


def settings(**outbox) -> AgentSettings:
    return AgentSettings(fleet="f", device="d", source=({},), outbox=OutboxSettings(**outbox))


def put(spool: Spool, payload: bytes, round_: int = 1) -> str:
    spool.put(task="t", round_=round_, digest=digest(payload), payload=payload, carry=None)
    return digest(payload)


def receipt(name: str, **kwargs) -> Receipt:
    return Receipt(**{"task": "t", "round": 1, "digest": name, "status": "accepted", **kwargs})


@asynccontextmanager
async def running(link, spool, resend_s=0.05):
    outbox = outbox_of(link, spool, settings(resend_s=resend_s))
    async with beside(outbox.run(), forever=True):
        yield outbox


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path / "spool.sqlite3", 1_000_000)
    yield spool
    spool.close()


async def test_a_small_frame_goes_as_it_is_again_and_again_until_its_receipt(spool):
    link, name = FakeLink(), put(spool, SMALL)
    async with running(link, spool) as outbox:
        await until(lambda: len(link.on("up/update")) >= 3)
        assert set(link.on("up/update")) == {SMALL}
        assert await outbox.on_receipt(receipt(name))
        await until(lambda: outbox.waiting == 0)
        count = len(link.sent)
        await asyncio.sleep(0.15)
        assert len(link.sent) == count
    assert outbox.accepted == 1
    assert spool.pending() == []


async def test_a_refusal_clears_too_and_is_told(spool):
    link, name = FakeLink(), put(spool, SMALL)
    async with running(link, spool) as outbox:
        refused = receipt(name, status="refused", reason=Reason.WRONG_ROUND, detail="round 1 is closed")
        assert await outbox.on_receipt(refused)
        assert not await outbox.on_receipt(refused), "twice does no harm"
    assert outbox.refused == 1
    assert "round 1 is closed" in outbox.last_refusal
    assert spool.pending() == []


async def test_an_update_that_was_accepted_and_then_withdrawn_is_counted_by_itself(spool, tmp_path):
    ledger = settled(tmp_path, ManualClock())
    state_wanted, changed = Signal(), Signal()
    outbox = outbox_of(FakeLink(), spool, settings(), ledger, state_wanted=state_wanted, changed=changed)
    late = receipt("b" * 64, round=3, status="refused", reason=Reason.OUTLIER, detail="too far")
    assert not await outbox.on_receipt(late)
    assert (outbox.withdrawn, outbox.refused, outbox.accepted) == (1, 0, 0)
    assert outbox.last_refusal == "outlier: too far"
    assert [*outbox.confirmed] == ["b" * 64]
    assert state_wanted.is_set()
    assert changed.is_set()


async def test_a_large_one_is_announced_and_only_wanted_chunks_go_with_a_window_in_flight(spool):
    link, name = FakeLink(chunk_bytes=1024), put(spool, LARGE)
    async with running(link, spool, resend_s=5) as outbox:
        await until(lambda: link.on("up/update"))
        pointer = link.messages("up/update", BlobPointer)[0]
        assert (pointer.blob.digest, pointer.blob.size, pointer.chunk_bytes) == (name, len(LARGE), 1024)
        outbox.on_want(Want(digest=name, missing=((1, 3), (5, 99))))
        await until(lambda: len(link.sent) == 9)
        await asyncio.sleep(0.02)
    chunks = {topic.rsplit("-", 1)[1]: payload for topic, payload, _ in link.sent if "/blob/" in topic}
    assert chunks == {str(i): LARGE[i * 1024 : (i + 1) * 1024] for i in (1, 2, 3, 5, 6, 7, 8, 9)}
    assert link.most_in_flight == 4


async def test_what_could_not_be_sent_goes_at_the_next_connect(spool):
    link = FakeLink()
    link.connected = False
    put(spool, SMALL)
    async with running(link, spool, resend_s=60) as outbox:
        await asyncio.sleep(0.05)
        assert link.sent == []
        link.connected = True
        outbox.send_all()
        await until(lambda: link.on("up/update"))


async def test_a_want_from_before_a_restart_is_answered_with_a_new_pointer(spool):
    link, name = FakeLink(chunk_bytes=1024), put(spool, LARGE)
    outbox = outbox_of(link, spool, settings(resend_s=60))
    outbox._due[name] = 1e18
    outbox.on_want(Want(digest=name, missing=((0, 1),)))
    async with beside(outbox.run()):
        await until(lambda: link.sent)
        assert link.messages("up/update", BlobPointer)


async def test_an_answer_for_one_update_sends_nothing_of_another_before_its_time(spool):
    link = FakeLink(chunk_bytes=1024)
    name, other = put(spool, LARGE), put(spool, LARGE[::-1], 2)
    async with running(link, spool, resend_s=60) as outbox:
        await until(lambda: len(link.on("up/update")) == 2)
        outbox.on_want(Want(digest=name, missing=((0, 0),)))
        await until(lambda: [topic for topic, _, _ in link.sent if "/blob/" in topic])
        outbox.on_want(Want(digest=other, missing=((0, 0),)))
        await until(lambda: len([topic for topic, _, _ in link.sent if "/blob/" in topic]) == 2)
        assert len(link.on("up/update")) == 2


async def test_the_spool_is_not_read_again_while_nothing_is_due(tmp_path):
    class Counted(Spool):
        reads = 0

        def pending(self):
            self.reads += 1
            return super().pending()

    spool = Counted(tmp_path / "spool.sqlite3", 1_000_000)
    link = FakeLink()
    put(spool, SMALL)
    async with running(link, spool, resend_s=60) as outbox:
        outbox.send_all()
        await until(lambda: len(link.on("up/update")) >= 1)
        await asyncio.sleep(0.2)
        assert spool.reads <= 3
    spool.close()


OFFER = Offer(task="t", round=3, base="a" * 64, base_size=10, closes_in_s=60)


def settled(tmp_path, clock, **kwargs) -> RoundLedger:
    ledger = RoundLedger(tmp_path / "rounds.json", clock)
    ledger.record_spooled(OFFER, "b" * 64)
    assert not ledger.reason_to_skip(OFFER)
    ledger.settle(receipt("b" * 64, round=3, **kwargs))
    return ledger


async def test_a_settled_round_is_not_trained_again_also_after_a_restart(tmp_path):
    clock = ManualClock(100)
    ledger = settled(tmp_path, clock)
    assert ledger.reason_to_skip(OFFER)
    assert RoundLedger(tmp_path / "rounds.json", clock).reason_to_skip(OFFER)
    assert not ledger.reason_to_skip(OFFER.model_copy(update={"base": "c" * 64})), (
        "another base, another question"
    )
    await clock.advance(GRACE_S + 1)
    assert ledger.reason_to_skip(OFFER, lost=True), "the same attempt: the list is older than the receipt"
    later = OFFER.model_copy(update={"attempt": 2})
    assert ledger.reason_to_skip(later)
    assert not ledger.reason_to_skip(later, lost=True), "a later attempt lacks the update: it was lost"


async def test_a_restarted_learner_says_that_the_last_update_was_refused_and_why(tmp_path):
    clock = ManualClock(100)
    assert RoundLedger(tmp_path / "rounds.json", clock).first_status() == "no offer yet"
    words = "for another 600 s; `lichen device approve` ends it"
    settled(tmp_path, clock, status="refused", reason=Reason.QUARANTINED, detail=words)
    told = RoundLedger(tmp_path / "rounds.json", clock).first_status()
    assert told == f"no offer yet; the last update, of round 3, was refused: quarantined: {words}"
    (tmp_path / "rounds.json").unlink()
    settled(tmp_path, clock)
    assert RoundLedger(tmp_path / "rounds.json", clock).first_status() == "no offer yet"


@pytest.mark.parametrize("reason", sorted(FINAL))
async def test_what_was_refused_for_good_is_not_tried_again_and_why_is_said(tmp_path, reason):
    clock = ManualClock(100)
    ledger = settled(tmp_path, clock, status="refused", reason=reason, detail="acc/w is odd")
    await clock.advance(MAX_RETRY_S + 1)
    words = f"this offer's update was refused: {reason}: acc/w is odd; waiting for the next round"
    for one in (ledger, RoundLedger(tmp_path / "rounds.json", clock)):
        assert one.reason_to_skip(OFFER) == words


def test_an_accepted_update_that_is_withdrawn_is_refused_from_then_on_and_that_is_news_once(tmp_path):
    ledger = settled(tmp_path, ManualClock(100))
    withdrawn = receipt("b" * 64, round=3, status="refused", reason=Reason.OUTLIER, detail="too far")
    assert ledger.withdraw(withdrawn)
    assert "outlier: too far" in ledger.reason_to_skip(OFFER)
    assert not ledger.withdraw(withdrawn)
    assert not ledger.withdraw(receipt("c" * 64, status="refused"))


def test_the_words_for_a_refusal_are_those_of_its_own_update(tmp_path):
    ledger = settled(tmp_path, ManualClock(100), status="refused", reason=min(FINAL), detail="acc/w is odd")
    mine = receipt("b" * 64, round=3, status="refused", reason=min(FINAL))
    assert "acc/w is odd; waiting for the next round" in ledger.describe(mine)
    other = receipt("c" * 64, round=4, status="refused", reason=Reason.WRONG_ROUND, detail="it is closed")
    assert ledger.describe(other).startswith("round 4 was refused: wrong_round: it is closed; ")


@pytest.mark.parametrize("reason", sorted(set(Reason) - FINAL))
async def test_what_was_refused_for_the_moment_is_tried_again_at_a_growing_pace(tmp_path, reason):
    clock = ManualClock(100)
    ledger = settled(tmp_path, clock, status="refused", reason=reason, detail="now now")
    assert f"refused: {reason}: now now" in ledger.reason_to_skip(OFFER)
    if reason in OF_THE_ROUND:
        later = OFFER.model_copy(update={"attempt": 2})
        assert bool(ledger.reason_to_skip(later)) is (reason is Reason.DUPLICATE), (
            "the round was opened again"
        )
        assert not ledger.reason_to_skip(later, lost=True), "the coordinator has no update of this device"
        await clock.advance(MAX_RETRY_S - 1)
        assert ledger.reason_to_skip(OFFER), "another update of this attempt would be refused as well"
        await clock.advance(2)
        assert not ledger.reason_to_skip(OFFER), "unless a restored coordinator opens the round anew"
        return
    await clock.advance(RETRY_S - 1)
    assert ledger.reason_to_skip(OFFER), "no busy loop"
    await clock.advance(2)
    assert not ledger.reason_to_skip(OFFER)
    ledger.record_spooled(OFFER, "c" * 64)
    ledger.settle(receipt("c" * 64, round=3, status="refused", reason=reason))
    await clock.advance(RETRY_S + 1)
    assert ledger.reason_to_skip(OFFER), "the second pause is longer"
    await clock.advance(RETRY_S)
    assert not ledger.reason_to_skip(OFFER)


def test_a_broken_ledger_is_forgotten(tmp_path):
    (tmp_path / "rounds.json").write_text("{half")
    assert RoundLedger(tmp_path / "rounds.json", ManualClock()).find(OFFER) is None
