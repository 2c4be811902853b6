"""What a task that runs for months leaves on disk and must replay at a start is bounded."""

import pytest
import sqlalchemy as sa

from coordinator.round_machine.events import Checkpoint
from coordinator.rounds import driver as driving
from coordinator.status.history import read as history
from coordinator.storage import schema
from protocol import messages
from protocol.messages import Metric
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

pytestmark = pytest.mark.both_engines


async def test_a_start_replays_only_what_came_since_the_last_round(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=6)) as made:
        await made.online("a")
        for round_ in range(1, 6):
            await made.until(lambda known=round_: made.app.driver.state.round == known)
            await made.phase("collecting")
            await made.give("a", Kind.UPDATE, frame(header("a", round_, made.app.driver.state.manifest)))
        await made.until(lambda: made.app.driver.state.round == 6)
        await made.phase("collecting")
        journal = made.app.storage.store.journal()
        assert isinstance(journal[0][1], Checkpoint)
        assert journal[0][1].state.round == 6
        assert len(journal) < 6
        before = made.app.driver.state
        assert driving.replay(journal)[0] == before
    async with bench(tmp_path, tiny_task(count=6)) as made:
        assert made.app.driver.state.round == 6


async def test_a_round_that_nobody_answers_does_not_fill_the_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.rounds.attempt_log._MAX_ATTEMPTS", 3)
    monkeypatch.setattr("coordinator.storage.database._KEPT_EVENTS", 10)
    monkeypatch.setattr(driving, "TICK_S", 0.01)
    async with bench(tmp_path, tiny_task(deadline_s=0.01)) as made:
        await made.online("a")
        await made.until(lambda: made.app.driver.state.attempt > 12)
        attempts = made.app.storage.store.rows(sa.select(schema.attempts.c.attempt))
        events = made.app.storage.store.rows(sa.select(schema.events.c.seq))
        assert len(attempts) <= 3
        assert len(events) <= 20


async def test_headers_of_old_rounds_leave_the_database_and_the_newest_stay(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=6), keep_updates=2) as made:
        await made.online("a")
        for round_ in range(1, 7):
            await made.until(lambda known=round_: made.app.driver.state.round == known)
            await made.phase("collecting")
            metric = messages.encode(Metric(device="a", round=round_, metrics={"loss": 1.0}))
            await made.give("a", Kind.METRIC, metric)
            await made.give("a", Kind.UPDATE, frame(header("a", round_, made.app.driver.state.manifest)))
        await made.phase("done")
        for table in (schema.updates, schema.device_metrics, schema.attempts):
            rows = made.app.storage.store.rows(sa.select(table.c.round).order_by(table.c.round))
            assert [row["round"] for row in rows] == [4, 5, 6], table.name
    found = history(tmp_path / "coordinator")
    assert [one["round"] for one in found["rounds"]] == [4, 5, 6]
    assert len(found["versions"]) == 7, "what came of the older rounds is known"
