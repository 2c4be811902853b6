"""The lease in the database, and the fence of a leader's transactions."""

import asyncio
import threading
from contextlib import closing

import pytest

from coordinator.lease.decisions import Lease
from coordinator.lease.keeper import LeaseKeeper
from coordinator.lease.table import LeaseLost, LeaseTable, fence
from coordinator.rollout.model import Begun
from coordinator.rollout.store import RolloutStore
from coordinator.storage.database import Database
from coordinator.storage.location import Location
from tests.support.clock import ManualClock

pytestmark = pytest.mark.both_engines

LIFE_S = 30.0


@pytest.fixture
def connect(tmp_path):
    """Opens connections, as of several processes."""
    opened = []

    def one(**how) -> Database:
        opened.append(Database(tmp_path / "coordinator.sqlite3", alone=False, **how))
        return opened[-1]

    yield one
    for store in opened:
        store.close()


def test_of_many_processes_at_once_one_gets_the_lease(connect):
    tables = [LeaseTable(connect(), "lead", LIFE_S) for _ in range(4)]
    start, got = threading.Barrier(len(tables)), []

    def try_it(number: int) -> None:
        start.wait()
        mine, _, _ = tables[number].take(f"process {number}")
        if mine is not None:
            got.append((number, mine))

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(len(tables))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [(number, lease)] = got
    assert lease.epoch == 1
    for table in tables:
        assert table.read()[0].holder == f"process {number}"


def test_a_lease_can_be_renewed_released_and_taken_with_the_next_epoch(connect):
    first, second = (LeaseTable(connect(), "lead", LIFE_S) for _ in range(2))
    mine, _, _ = first.take("a")
    assert mine is not None
    assert second.take("b")[0] is None
    again = first.renew(mine)
    assert again is not None
    assert again.until >= mine.until
    first.release(again)
    theirs, before, _ = second.take("b")
    assert theirs == Lease("b", 2, theirs.until)
    assert before.epoch == 1
    assert first.renew(again) is None
    first.release(again)  # it is another's now: nothing changes
    assert second.read()[0] == theirs


def test_a_lease_that_ran_out_is_taken_and_its_former_holder_writes_nothing(connect):
    short, other = LeaseTable(connect(), "lead", 1e-6), LeaseTable(connect(), "lead", LIFE_S)
    mine, _, _ = short.take("a")
    assert mine is not None
    leader = connect(fence=fence("lead", mine.epoch))
    leader.put_meta({"written_by": "a"})
    theirs, _, _ = other.take("b")
    assert theirs is not None
    with pytest.raises(LeaseLost, match="epoch 2, ours is 1"):
        leader.put_meta({"written_by": "a again"})
    next_leader = connect(fence=fence("lead", theirs.epoch))
    assert next_leader.get_meta("written_by") == "a"
    assert leader.get_meta("written_by") == "a"  # reading is allowed
    next_leader.put_meta({"written_by": "b"})


async def test_a_keeper_waits_renews_and_notices_that_it_lost_the_lease(connect):
    clock = ManualClock()
    table = LeaseTable(connect(), "lead", LIFE_S)
    with closing(LeaseKeeper(table, "lead", clock, "me")) as keeper:
        await keeper.take()
        assert keeper.holds()
        assert keeper.epoch == 1
        running = asyncio.create_task(keeper.run())
        await clock.advance(LIFE_S / 2)
        assert keeper.holds()
        other = LeaseTable(connect(), "lead", 1e-6)  # to this one every lease has run out, or is too long
        assert other.take("other")[0] is not None
        while not running.done():
            await clock.advance(LIFE_S / 4)
            await asyncio.sleep(0.01)
        with pytest.raises(LeaseLost, match="another process has taken"):
            await running


async def test_a_process_that_was_stopped_for_longer_than_its_lease_does_not_trust_it(connect):
    clock = ManualClock()
    with closing(LeaseKeeper(LeaseTable(connect(), "lead", LIFE_S), "lead", clock, "me")) as keeper:
        await keeper.take()
        await clock.advance(LIFE_S)
        assert not keeper.holds()
        await keeper.release()
        assert not keeper.holds()


async def test_a_former_leader_writes_no_rollout(tmp_path, connect):
    location = Location.at(tmp_path)
    table, clock = LeaseTable(connect(), "lead", 1e-6), ManualClock()
    with closing(LeaseKeeper(table, "lead", clock, "me")) as keeper:
        await keeper.take()
        guard = keeper.shared_fence(same_database=location.schema is not None)
        assert LeaseTable(connect(), "lead", LIFE_S).take("other")[0] is not None
        with RolloutStore(location, guard) as rollouts, pytest.raises(LeaseLost):
            rollouts.play(Begun(mode="manual", release=None), 1.0)
        with RolloutStore(location) as rollouts:
            assert not rollouts.course().begun
            rollouts.play(Begun(mode="manual", release=None), 2.0)
            assert rollouts.course().begun
