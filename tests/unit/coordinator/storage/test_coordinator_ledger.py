"""Peers decide how often they send, never how often the disk is synced."""

import pytest
import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage import write_behind as late
from coordinator.storage.database import Database
from coordinator.storage.location import Location
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol import messages
from protocol.errors import Reason, Refused, Transient
from protocol.messages import Metric, State
from protocol.topics import Kind
from runtime.mqtt.link import Message
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task

CLOSED = {"sqlite": "PRAGMA query_only", "postgresql": "SET default_transaction_read_only"}
"""Makes a connection take no writes."""
pytestmark = pytest.mark.both_engines


@pytest.fixture
def store(tmp_path):
    with Database(tmp_path / "c.sqlite3") as made:
        yield made


def ignore() -> None:
    """Nothing waits for this row."""


def state_of(device: str, windows: int = 0) -> State:
    return State(status="online", device=device, windows=windows)


def commits(app) -> list[str]:
    """From now on, every commit of that database."""
    seen: list[str] = []
    sa.event.listen(app.storage.store.engine.engine, "commit", lambda _: seen.append("commit"))
    return seen


async def test_a_flood_of_garbage_costs_no_commit_each(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), quarantine={"refusals": 0}) as made:
        await made.online("a")
        seen, acknowledged = commits(made.app), []

        async def give(topic: str, payload: bytes) -> None:
            message = Message(
                f"lichen/v1/test/d/a/up/{topic}", payload, False, lambda: acknowledged.append("")
            )
            await made.app.dispatcher.dispatch(message)

        for number in range(200):
            await give("fetch", b"%d" % number)
            await give("nonsense", b"")
            metric = Metric(device="a", round=0, metrics={"loss": float(number)})
            await give("metric", messages.encode(metric))
            await give("state", messages.encode(state_of("a", windows=number)))
        await made.until(lambda: len(acknowledged) == 800)
        assert len(seen) < 200, "800 messages; the round machine ticks, reads are transactions too"
        counted = made.refusals()
        assert counted["a", "malformed"] == 200
        assert sum(counted.values()) == 400
        assert made.app.storage.store.rows(sa.select(schema.device_metrics)) == [], "it took part in no round"


async def test_a_state_is_on_disk_before_it_is_acknowledged(tmp_path) -> None:
    """A broker that keeps our session does not send what is retained once more."""
    async with bench(tmp_path) as made:
        await made.give("a", Kind.STATE, messages.encode(state_of("a")))
        with Location.at(tmp_path / "coordinator").database(read_only=True) as database:
            assert [row["device"] for row in database.rows(sa.select(schema.devices))] == ["a"]


async def test_a_full_disk_loses_no_count(store, storage_engine) -> None:
    book = WriteBehindBuffer(store, ManualClock())
    book.refused("a", Refused(Reason.MALFORMED, "first"))
    await book.put(schema.devices, ignore, device="a", state={"n": 1}, wall=1.0)
    await book.put(schema.devices, ignore, device="b", state={"n": 1}, wall=1.0)

    def switch(word: str) -> None:
        with store.transaction() as connection:
            connection.exec_driver_sql(f"{CLOSED[storage_engine]}={word}")

    switch("ON")
    with pytest.raises(Transient):
        book.save()
    book.refused("a", Refused(Reason.MALFORMED, "second"))
    await book.put(schema.devices, ignore, device="a", state={"n": 2}, wall=2.0)
    switch("OFF")
    book.save()
    row = store.rows(sa.select(schema.refusals))[0]
    assert (row["count"], row["last_detail"]) == (2, "second")
    found = {r["device"]: r["state"] for r in store.rows(sa.select(schema.devices))}
    assert found == {"a": {"n": 2}, "b": {"n": 1}}, "the newer row stays"


async def test_what_waits_is_bounded(store, monkeypatch) -> None:
    monkeypatch.setattr(late, "MAX_ROWS", 5)
    monkeypatch.setattr(late, "MAX_REFUSALS", 3)
    book = WriteBehindBuffer(store, ManualClock())
    for number in range(20):
        book.refused(f"d{number}", Refused(Reason.MALFORMED, "x" * 9000))
        await book.put(schema.devices, ignore, device=f"d{number}", state={}, wall=1.0)
        assert len(book._rows) <= 5
    book.save()
    assert len(store.rows(sa.select(schema.devices))) == 20
    rows = store.rows(sa.select(schema.refusals))
    assert sum(row["count"] for row in rows) == 20
    assert max(len(row["last_detail"]) for row in rows) == 300


async def test_what_waits_is_written_when_the_coordinator_stops(tmp_path) -> None:
    async with bench(tmp_path) as made:
        await made.give("a", Kind.UPDATE, b"neither frame nor pointer")
        assert made.link.receipts("a")[0].reason is Reason.MALFORMED
    with Location.at(tmp_path / "coordinator").database(read_only=True) as database:
        [row] = database.rows(sa.select(schema.refusals))
    assert (row["device"], row["count"]) == ("a", 1)
