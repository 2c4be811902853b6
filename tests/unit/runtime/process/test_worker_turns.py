"""Workers that share turns: a limit of child processes, busy or idle."""

import asyncio
from pathlib import Path

import pytest

from protocol.errors import Transient
from runtime.process.worker import Worker
from runtime.process.worker_turns import WorkerTurns
from tests.support.services import until

ROOT = Path(__file__).parents[4]
MODULE = "tests.support.processes.worker"


def worker(turns: WorkerTurns, **options: object) -> Worker:
    return Worker(MODULE, env={"PYTHONPATH": str(ROOT)}, turns=turns, **options)  # type: ignore[arg-type]


def job(folder: Path, name: str, what: str = "ok") -> Path:
    made = folder / name
    made.mkdir()
    (made / "do").write_text(what)
    return made


async def test_eight_workers_never_have_more_children_than_turns(tmp_path: Path) -> None:
    turns = WorkerTurns(2)
    workers = [worker(turns) for _ in range(8)]
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, sum(one.pid is not None for one in workers))
            await asyncio.sleep(0.002)

    counting = asyncio.ensure_future(count())
    jobs = [one.run(job(tmp_path, f"job-{n}"), 60) for n, one in enumerate(workers)]
    await asyncio.gather(*jobs)
    counting.cancel()

    assert most == 2
    assert sum(one.pid is not None for one in workers) == 2, "idle children count"
    await asyncio.gather(*(one.close() for one in workers))


async def test_the_child_that_was_idle_longest_makes_room_and_the_same_one_is_kept(tmp_path: Path) -> None:
    turns = WorkerTurns(2)
    first, second, third = (worker(turns) for _ in range(3))
    await first.run(job(tmp_path, "a"), 60)
    await second.run(job(tmp_path, "b"), 60)
    kept = first.pid
    await first.run(job(tmp_path, "c"), 60)
    assert first.pid == kept

    await third.run(job(tmp_path, "d"), 60)
    assert (first.pid, second.pid) == (kept, None)
    assert third.pid is not None
    await asyncio.gather(first.close(), third.close())


async def test_a_turn_is_given_back_by_a_job_that_hangs_fails_or_is_cancelled(tmp_path: Path) -> None:
    turns = WorkerTurns(1)
    first, second = worker(turns), worker(turns)

    hanging = job(tmp_path, "hang", "hang")
    running = asyncio.ensure_future(first.run(hanging, 60))
    await until((hanging / "grandchild").is_file, seconds=30)
    waiting = asyncio.ensure_future(second.run(job(tmp_path, "a"), 60))
    await asyncio.sleep(0.05)
    assert second.pid is None, "it waits for its turn"
    running.cancel()
    await waiting
    assert first.pid is None

    with pytest.raises(Transient):
        await first.run(job(tmp_path, "killed", "killed"), 60)
    await second.run(job(tmp_path, "b"), 60)
    await second.close()


async def test_the_time_of_a_job_begins_with_its_turn(tmp_path: Path) -> None:
    turns = WorkerTurns(1)
    first, second = worker(turns), worker(turns)
    hanging = job(tmp_path, "hang", "hang")
    running = asyncio.ensure_future(first.run(hanging, 600))
    await until((hanging / "grandchild").is_file, seconds=30)
    waiting = asyncio.ensure_future(second.run(job(tmp_path, "a"), 0.000001))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    running.cancel()
    with pytest.raises(Transient, match="did not finish in"):
        await waiting
