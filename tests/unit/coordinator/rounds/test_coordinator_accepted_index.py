"""Updates of the open round are looked up in memory, those of rounds that are over in the journal."""

import pytest

from coordinator.round_machine.events import UpdatesLost
from coordinator.rounds.accepted_index import AcceptedIndex
from coordinator.storage.update_journal import Journal
from protocol.errors import Reason
from protocol.frames.frame import digest
from protocol.topics import Kind
from runtime.concurrency.threads import Threads
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task


def refuse_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> None:
        raise AssertionError("the journal was asked")

    for name in ("find", "digest_of", "digests"):
        monkeypatch.setattr(Journal, name, look)


async def test_an_update_of_the_open_round_costs_no_look_into_the_journal(tmp_path, monkeypatch) -> None:
    async with bench(tmp_path, tiny_task(count=2, min_devices=2)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        good, other = frame(header("a", 1, base)), frame(header("a", 1, base, samples=4))
        with monkeypatch.context() as patch:
            refuse_to_look(patch)
            await made.give("a", Kind.UPDATE, good)
            await made.give("a", Kind.UPDATE, good)
        assert [one.status for one in made.link.receipts("a")] == ["accepted", "accepted"]
        await made.give("a", Kind.UPDATE, other)
        assert made.link.receipts("a")[-1].reason is Reason.DUPLICATE
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base)))
        await made.until(lambda: made.app.driver.state.round == 2)
        await made.give("a", Kind.UPDATE, other)
        late = made.link.receipts("a")[-1]
        assert (late.status, late.reason) == ("refused", Reason.WRONG_ROUND), "of a round that is over"
        await made.give("a", Kind.UPDATE, good)
        again = made.link.receipts("a")[-1]
        assert (again.status, again.digest) == ("accepted", digest(good)), "the receipt that was lost"


async def test_an_update_of_the_open_round_is_known_after_a_restart(tmp_path, monkeypatch) -> None:
    task = tiny_task(count=1, min_devices=2)
    async with bench(tmp_path, task) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        good = frame(header("a", 1, made.app.driver.state.manifest))
        await made.give("a", Kind.UPDATE, good)
    async with bench(tmp_path, task) as made:
        refuse_to_look(monkeypatch)
        await made.give("a", Kind.UPDATE, good)
        assert [one.status for one in made.link.receipts("a")] == ["accepted"]


async def test_what_is_withdrawn_or_of_another_round_is_not_in_the_index() -> None:
    index = AcceptedIndex(None, Threads("none", 1))  # type: ignore[arg-type]  # what it knows needs no journal
    index.follow(1, [], {(1, "a"): "A", (1, "b"): "B"})
    assert await index.digests([(1, "a"), (1, "c")]) == {(1, "a"): "A"}
    index.follow(1, [UpdatesLost(round=1, devices=("a",))], {})
    assert (index.has("a", "A"), index.has("b", "B")) == (False, True)
    index.follow(1, [UpdatesLost(round=2, devices=("b",))], {})
    assert index.has("b", "B")
    index.follow(2, [], {(1, "a"): "A"})
    assert not index.has("a", "A")
    assert not index.has("b", "B")
