"""Folding: right, in any order, in O(model) memory, and honest about what cannot be folded."""

import tracemalloc

import numpy as np
import pytest

from coordinator.aggregation.fold import UnusableUpdates, fold_round, limits_for
from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.status.history import read
from coordinator.storage.database import Database
from coordinator.storage.update_journal import AcceptedUpdate, Journal
from models.contract import Blobs, Update
from protocol.errors import Reason, Transient
from protocol.frames.frame import digest
from protocol.tasks.task import Task
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import TinyFold, TinyServer, frame, header, tiny_task

SIZE = 50_000
STATE = {"head": {"head/w": np.ones(SIZE, np.float32)}}
LIMITS = limits_for(STATE, 64 * 1024 * 1024)


def entries_in(tmp_path, count: int) -> list[AcceptedUpdate]:
    with Database(tmp_path / "c.sqlite3") as store:
        journal = Journal(store, tmp_path / "updates")
        for number in range(count):
            head = header(f"d{number:02}", 1, "0" * 64)
            update = frame(head, float(number), SIZE)
            journal.write(1, digest(update), update)
            journal.record(ReceivedUpdate(head, digest(update), len(update)), 1.0)
        return journal.entries(1, [f"d{number:02}" for number in range(count)])


def peak_of(entries: list[AcceptedUpdate]) -> int:
    fold_round(TinyServer(), tiny_task(), 1, STATE, entries[:1], LIMITS)
    tracemalloc.start()
    try:
        fold_round(TinyServer(), tiny_task(), 1, STATE, entries, LIMITS)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_updates(tmp_path) -> None:
    entries = entries_in(tmp_path, 40)
    few, many = peak_of(entries[:5]), peak_of(entries)
    assert many <= few * 1.1
    assert many < 12 * 4 * SIZE


def test_the_order_of_updates_does_not_matter(tmp_path) -> None:
    entries = entries_in(tmp_path, 7)
    one = fold_round(TinyServer(), tiny_task(), 1, STATE, entries, LIMITS)[0]
    other = fold_round(TinyServer(), tiny_task(), 1, STATE, entries[::-1], LIMITS)[0]
    np.testing.assert_array_equal(one["head"]["head/w"], other["head"]["head/w"])
    assert one["head"]["head/w"][0] == 4.0


def test_all_damaged_updates_are_named(tmp_path) -> None:
    entries = entries_in(tmp_path, 4)
    entries[1].path.write_bytes(b"rot")
    entries[3].path.unlink()
    with pytest.raises(UnusableUpdates) as found:
        fold_round(TinyServer(), tiny_task(), 1, STATE, entries, LIMITS)
    assert set(found.value.lost) == {"d01", "d03"}
    assert {r.reason for r in found.value.lost.values()} == {Reason.WRONG_DIGEST}


async def test_an_accepted_update_that_rots_on_disk_is_reported_and_the_rest_is_folded(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=2), spread_s=0.3) as made:
        await made.online("a", "b", "c")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        for device, value in (("a", 1.0), ("b", 3.0)):
            await made.give(device, Kind.UPDATE, frame(header(device, 1, base), value))
        rotten = frame(header("b", 1, base), 3.0)
        (tmp_path / "coordinator/updates/1" / digest(rotten)).write_bytes(b"rot")
        await made.give("c", Kind.UPDATE, frame(header("c", 1, base), 5.0))
        await made.until(lambda: made.app.driver.state.version == 1)
        assert [r.status for r in made.link.receipts("b")] == ["accepted", "refused"]
        state = await made.app.model.state()
        assert state["head"]["head/w"][0] == 3.0
    found = read(tmp_path / "coordinator")
    assert found["versions"][1]["devices"] == ["a", "c"]
    assert [bool(u["lost"]) for u in found["rounds"][0]["updates"]] == [False, True, False]


async def test_too_few_left_reopens_the_round_and_asks_the_device_again(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1, min_devices=2)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        a, b = (frame(header(device, 1, base)) for device in "ab")
        await made.give("a", Kind.UPDATE, a)
        (tmp_path / "coordinator/updates/1" / digest(a)).write_bytes(b"rot")
        await made.give("b", Kind.UPDATE, b)
        await made.until(
            lambda: made.app.driver.state.attempt == 2 and made.app.driver.state.phase == "collecting"
        )
        assert made.app.driver.state.missing() == ("a",)
        await made.give("a", Kind.UPDATE, a)
        await made.until(lambda: made.app.driver.state.version == 1)
        assert read(tmp_path / "coordinator")["versions"][1]["devices"] == ["a", "b"]


class Faulty(TinyServer):
    """Its fold fails on the update of ``d01`` in a way that no check foresaw."""

    fault: type[BaseException] = IndexError

    def open(self, task: Task, round_: int, state: Blobs) -> TinyFold:
        fold = super().open(task, round_, state)
        take, fault = fold.fold, self.fault

        def failing(update: Update) -> None:
            if update.header.device == "d01":
                raise fault("ours")
            take(update)

        fold.fold = failing
        return fold


def test_a_fault_in_the_methods_fold_costs_one_update_and_not_the_coordinator(tmp_path) -> None:
    with pytest.raises(UnusableUpdates) as found:
        fold_round(Faulty(), tiny_task(), 1, STATE, entries_in(tmp_path, 3), LIMITS)
    assert set(found.value.lost) == {"d01"}
    assert "IndexError" in found.value.lost["d01"].detail


def test_too_little_memory_loses_no_accepted_update(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Faulty, "fault", MemoryError)
    with pytest.raises(Transient, match="d01"):
        fold_round(Faulty(), tiny_task(), 1, STATE, entries_in(tmp_path, 3), LIMITS)
