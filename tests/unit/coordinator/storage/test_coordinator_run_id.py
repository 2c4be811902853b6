"""Two training runs of one task: what the first one's devices send does not count in the second."""

import random
import shutil

import pytest

from coordinator.storage.backup import backup_of
from coordinator.storage.location import DATABASE
from coordinator.storage.run_id import FILE, RunId
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import TinyJobs, frame, header, tiny_task


async def first_base(folder, rng=None):
    async with bench(folder, tiny_task(count=1), TinyJobs(), rng=rng) as made:
        return made.app.driver.state.manifest


async def test_an_update_of_the_run_before_is_refused_by_a_coordinator_that_was_wiped(tmp_path) -> None:
    rng = random.SystemRandom()
    before = await first_base(tmp_path, rng)
    assert await first_base(tmp_path, rng) == before, "a restart is the same run"
    shutil.rmtree(tmp_path / "coordinator")
    async with bench(tmp_path, tiny_task(count=1), TinyJobs(), rng=rng) as made:
        await made.online("a")
        await made.phase("collecting")
        assert made.app.driver.state.manifest != before
        await made.give("a", Kind.UPDATE, frame(header("a", 1, before)))
        refused = made.link.receipts("a")[-1]
        assert (refused.status, refused.reason) == ("refused", "wrong_base")


async def test_a_lost_database_is_the_same_run(tmp_path) -> None:
    before = await first_base(tmp_path)
    database = tmp_path / "coordinator" / DATABASE
    for file in (database, backup_of(database)):
        file.unlink(missing_ok=True)
    assert await first_base(tmp_path) == before


async def test_version_0_alone_names_the_run(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1), TinyJobs()) as made:
        registry = made.app.round_worker.registry
        base = made.app.driver.state.manifest
        assert registry.manifest(base).run == RunId(tmp_path / "coordinator").get()
    mark, later = registry.publish(1, {}, base)  # a running coordinator might remove what it has not made
    assert later.run is None
    assert registry.manifest(mark).run is None


@pytest.mark.parametrize("damage", ["", "00", "x" * 32, "0" * 33, "\x80" * 32])
def test_a_damaged_file_is_made_again(tmp_path, damage) -> None:
    (tmp_path / FILE).write_text(damage, "latin-1")
    made = RunId(tmp_path, random.Random(1)).get()
    assert RunId(tmp_path, random.Random(2)).get() == made
    assert len(made) == 32
