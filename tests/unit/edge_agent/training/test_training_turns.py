"""Turns of the tasks of a device: one at a time, in the order of asking, whatever ends one of them."""

import asyncio

import pytest

from edge_agent.training.turns import SharedWorker, TrainingTurns


async def rounds_of(turns: TrainingTurns, name: str, count: int, order: list[str]) -> None:
    """A task that asks again as soon as its round is over."""
    for _ in range(count):
        async with turns.turn(name, lambda _: None):
            order.append(name)
            await asyncio.sleep(0)


async def test_tasks_that_always_want_to_learn_take_turns() -> None:
    turns = TrainingTurns()
    order: list[str] = []
    await asyncio.gather(*(rounds_of(turns, name, 4, order) for name in "abc"))
    assert order == list("abc" * 4)


async def test_one_that_waits_says_for_whom_and_one_that_is_cancelled_leaves_the_queue() -> None:
    turns = TrainingTurns()
    said: list[str] = []
    order: list[str] = []
    over = asyncio.Event()

    async def first() -> None:
        async with turns.turn("gait", said.append):
            await over.wait()

    holder = asyncio.create_task(first())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(rounds_of(turns, "b", 1, order))
    third = asyncio.create_task(rounds_of(turns, "c", 1, order))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), turns.turn("sound", said.append):
            pytest.fail("two tasks learn at once")
    assert said == ["waits for its turn: task 'gait' learns, and one task of a device at a time"]
    waiting.cancel()
    over.set()
    await asyncio.gather(holder, third)
    assert order == ["c"]


async def test_a_turn_ends_with_the_error_or_the_cancellation_of_its_task() -> None:
    turns = TrainingTurns()
    with pytest.raises(ZeroDivisionError):
        async with turns.turn("a", lambda _: None):
            raise ZeroDivisionError
    holder = asyncio.create_task(rounds_of(turns, "a", 10**9, []))
    await asyncio.sleep(0)
    holder.cancel()
    async with asyncio.timeout(5), turns.turn("b", lambda _: None):
        pass


async def test_a_further_task_that_ends_leaves_the_worker_to_the_others(tmp_path) -> None:
    class Recorded:
        def __init__(self) -> None:
            self.jobs: list[str] = []
            self.closed = False

        async def run(self, job_dir, timeout_s: float) -> None:
            self.jobs.append(f"{job_dir.name} {timeout_s:g}")

        async def close(self) -> None:
            self.closed = True

    worker = Recorded()
    shared = SharedWorker(worker)
    await shared.run(tmp_path / "job", 5)
    await shared.close()
    assert (worker.jobs, worker.closed) == (["job 5"], False)
