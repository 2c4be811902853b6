import asyncio
import random
import time

import pytest

from lichen_lab.simulation.deterministic.machine.clock import EPOCH, NodeClock
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop, Stuck, run
from lichen_lab.simulation.deterministic.machine.process_life import LIFE, PowerCut, ProcessLife


async def _busy(loop: SimLoop, log: list[object]) -> None:
    """Tasks, timers, threads and locks that could interleave in many ways."""
    lock, queue = asyncio.Lock(), asyncio.Queue(2)

    async def worker(n: int) -> None:
        dice = random.Random()
        for i in range(5):
            await asyncio.sleep(dice.random())
            async with lock:
                log.append(("thread", n, i, await asyncio.to_thread(lambda: round(time.monotonic(), 6))))
            await queue.put((n, i))

    async def reader() -> None:
        while True:
            log.append((await queue.get(), loop.time()))

    reading = asyncio.create_task(reader())
    async with asyncio.TaskGroup() as group:
        for n in range(4):
            group.create_task(worker(n))
    reading.cancel()


def _trace(seed: int) -> list[object]:
    log: list[object] = []
    run(lambda loop: _busy(loop, log), seed)
    return log


def test_the_same_seed_gives_the_same_trace_and_another_one_another():
    assert _trace(1) == _trace(1)
    assert _trace(1) != _trace(2)
    assert len(_trace(1)) == 40


def test_time_is_virtual_and_takes_no_time():
    async def main(loop: SimLoop) -> tuple[float, float]:
        await asyncio.sleep(3600)
        return loop.time(), time.time()

    started = time.monotonic()
    assert run(main) == (3600, EPOCH + 3600)
    assert time.monotonic() - started < 5
    assert time.time() > EPOCH + 3600  # the real functions are back


def test_timeouts_are_in_virtual_time():
    async def main(loop: SimLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await asyncio.Event().wait()
        return loop.time()

    assert run(main) == 7


def test_a_sleep_below_the_last_bit_of_the_time_moves_it():
    """A clock with finer bits saw its moment not come yet, and slept as little again, for ever."""

    async def main(loop):
        await asyncio.sleep(59.865)
        before = loop.time()
        await asyncio.sleep(1e-15)
        return loop.time() > before

    assert run(main)


def test_a_blocking_sleep_holds_everything_up():
    async def main(loop: SimLoop) -> list[float]:
        seen: list[float] = []
        loop.call_later(1, lambda: seen.append(loop.time()))
        time.sleep(5)  # noqa: ASYNC251 - what is shown
        await asyncio.sleep(0.5)
        return [*seen, loop.time()]

    assert run(main) == [5, 5.5]


def test_timers_of_one_instant_run_in_the_order_of_their_asking():
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []
        for n in range(50):
            loop.call_at(1.0, seen.append, n)
        await asyncio.sleep(2)
        return seen

    assert run(main) == list(range(50))


def test_a_thread_runs_before_or_after_what_the_loop_does_meanwhile():
    async def main(_: SimLoop) -> str:
        order: list[str] = []
        thread = asyncio.create_task(asyncio.to_thread(order.append, "thread"))
        await asyncio.sleep(0)
        await asyncio.sleep(0.0005)
        order.append("loop")
        await thread
        return order[0]

    assert {run(main, seed) for seed in range(20)} == {"thread", "loop"}


def test_a_threads_error_comes_back_and_its_context_goes_with_it():
    async def main(_: SimLoop) -> str:
        LIFE.set(ProcessLife("a"))
        with pytest.raises(KeyError):
            await asyncio.to_thread({}.__getitem__, "x")
        return (await asyncio.to_thread(LIFE.get)).node

    assert run(main) == "a"


def test_a_deadlock_says_who_waits_where():
    async def main(_: SimLoop) -> None:
        async def for_nobody() -> None:
            await asyncio.Event().wait()

        await asyncio.create_task(for_nobody(), name="the-waiter")

    with pytest.raises(Stuck, match=r"nothing can happen any more.*the-waiter in locks\.py:\d+ wait"):
        run(main)


def test_a_world_without_end_is_stuck():
    async def main(_loop: SimLoop) -> None:
        for _ in range(1000):
            await asyncio.sleep(10)

    async def spin(_loop: SimLoop) -> None:
        for _ in range(100_000):
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="not at an end after 1000 virtual s"):
        run(main, max_virtual_s=1000)
    with pytest.raises(Stuck, match="more than 5000 steps"):
        run(spin, max_steps=5000)


def test_an_error_in_a_callback_ends_the_world():
    async def main(loop: SimLoop) -> None:
        loop.call_later(1, lambda: 1 // 0)
        await asyncio.sleep(5)

    with pytest.raises(ZeroDivisionError):
        run(main)


def test_an_error_of_a_task_that_nobody_awaits_is_not_lost():
    async def main(_: SimLoop) -> None:
        async def broken() -> None:
            raise ValueError("nobody looks")

        task = asyncio.create_task(broken())
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(1)

    with pytest.raises(ValueError, match="nobody looks"):
        run(main)


def test_quiet_moments_are_shown_before_time_moves():
    async def main(loop: SimLoop) -> list[float]:
        seen: list[float] = []
        loop.on_quiet = lambda: seen.append(loop.time())
        for _ in range(3):
            await asyncio.sleep(2)
        loop.on_quiet = None
        return seen

    assert run(main) == [0, 2, 4]


@pytest.mark.parametrize("moment", [1, 2])
def test_a_life_can_end_before_or_after_a_threads_work_and_nobody_hears_of_it(moment):
    async def main(_: SimLoop) -> tuple[list[int], bool]:
        life, done, heard = ProcessLife("a", crash_at=moment), [], []

        async def node() -> None:
            LIFE.set(life)
            await asyncio.to_thread(done.append, 1)
            heard.append(True)

        task = asyncio.create_task(node())
        life.cancel_at_end(task)
        await asyncio.wait([task])
        assert task.cancelled()
        assert life.dead
        return done, bool(heard)

    assert run(main) == ([] if moment == 1 else [1], False)


def test_a_power_cut_passes_through_code_that_catches_errors():
    life = ProcessLife("a", crash_at=1)

    def careless() -> None:
        try:
            life.moment("here")
        except Exception:  # noqa: BLE001 - what is shown
            pytest.fail("it was caught as an error")

    with pytest.raises(PowerCut):
        careless()
    life.moment("afterwards nothing counts")
    assert (life.moments, life.died_of) == (1, "here")


def test_signals_go_to_the_life_that_asked_for_them():
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        lives = [ProcessLife("a"), ProcessLife("b")]

        async def node(life: ProcessLife) -> None:
            LIFE.set(life)
            loop.add_signal_handler(15, seen.append, life.node)

        for life in lives:
            await asyncio.create_task(node(life))
        assert lives[1].signal(15)
        assert not lives[1].signal(2)
        lives[0].end("power")
        assert not lives[0].signal(15)
        await asyncio.sleep(0)
        return seen

    assert run(main) == ["b"]


def test_the_wall_clock_of_a_node_jumps_and_its_monotonic_one_does_not():
    async def main(loop: SimLoop) -> None:
        await asyncio.sleep(100)
        clock = NodeClock(loop, wrong_by_s=-3600, uptime_s=50)
        assert (clock.now(), clock.wall()) == (50, EPOCH + 100 - 3600)
        await clock.sleep(5)
        clock.jump(3600)
        assert (clock.now(), clock.wall(), clock.wrong_by_s) == (55, EPOCH + 105, 0)

    run(main)
