"""Times: the kernel's clocks on the agent's axis, blocks without stamps; the pump of a reader's thread."""

import asyncio
import threading
from contextlib import aclosing

import numpy as np
import pytest

from edge_agent.sources.reader_thread import ThreadOutlet, read_in_thread
from edge_agent.sources.timestamps import BlockTimestamps, ClockMapping


class Clocks:
    """A kernel clock that began at 5 s when it was 1000 s, and a wall clock that can be set."""

    def __init__(self):
        self.now, self.set_by = 0.0, 0.0

    def wall(self):
        return 1000.0 + self.now + self.set_by

    def kernel(self, _):
        return 5.0 + self.now


def ns(*seconds):
    return np.array([round(s * 1e9) for s in seconds], np.int64)


def test_stamps_follow_a_wall_clock_that_is_set_or_slewed():
    clocks, counters = Clocks(), {}
    one = ClockMapping("monotonic", clocks.wall, counters, clocks.kernel)
    np.testing.assert_allclose(one.unix(ns(4.9, 5.0)), [999.9, 1000.0])
    clocks.set_by = 0.001
    np.testing.assert_allclose(one.unix(ns(5.0)), [1000.0], err_msg="jitter of reading two clocks")
    clocks.set_by = 0.01
    np.testing.assert_allclose(one.unix(ns(5.0)), [1000.01])
    assert counters == {}
    clocks.set_by = 3600.0
    np.testing.assert_allclose(one.unix(ns(5.0)), [4600.0])
    assert counters == {"clock_steps": 1}


def test_a_pause_between_reading_two_clocks_is_no_step():
    clocks, counters, pauses = Clocks(), {}, iter([0.5, 0.5, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5])

    def slow(_):
        return clocks.kernel(None)

    def wall():
        clocks.now += next(pauses)
        return clocks.wall()

    one = ClockMapping("monotonic", wall, counters, slow)
    np.testing.assert_allclose(one.unix(ns(5.0)), [1000.0])
    np.testing.assert_allclose(one.unix(ns(5.0)), [1000.0], err_msg="even where it paused each time")
    assert counters == {}


def test_stamps_that_cannot_be_are_none():
    clocks, counters = Clocks(), {}
    one = ClockMapping("boottime", clocks.wall, counters, clocks.kernel)
    clocks.now = 1000.0
    assert one.unix(ns(0, 0)) is None
    assert counters["odd_stamps"] == 2


def test_a_block_is_spaced_by_the_true_rate_though_reads_jitter():
    rng, true, one = np.random.default_rng(0), 1 / 52.7, BlockTimestamps(50.0)
    errors, steps, done, last = [], [], 0, -np.inf
    for _ in range(400):
        n = int(rng.integers(3, 8))
        done += n
        t = one.times(n, done * true + float(rng.uniform(0, 0.01)))
        assert t[0] > last, "time goes on"
        last = t[-1]
        errors.append(last - done * true)
        steps += np.diff(t).tolist()
    assert np.abs(errors[200:]).max() < 0.02
    assert np.mean(steps[800:]) == pytest.approx(true, rel=0.01)


def test_a_pause_between_blocks_is_a_gap_and_not_stretched_over():
    one = BlockTimestamps(50.0)
    one.times(5, 10.0)
    t = one.times(5, 20.0)
    assert t[-1] == pytest.approx(20.0)
    assert t[0] == pytest.approx(19.92)


async def test_rows_wait_for_a_busy_loop_up_to_a_bound_and_the_oldest_go():
    counters: dict[str, float] = {}
    full = threading.Event()

    def work(outlet: ThreadOutlet) -> None:
        for i in range(100):
            outlet.put("m", np.array([float(i)]), np.zeros((1, 3), np.float32))
        full.set()

    t = []
    async with aclosing(read_in_thread(work, "test", counters, limit=30)) as batches:
        task = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        full.wait(5)  # the loop is busy: it blocks
        t += (await task).t.tolist()
        async for batch in batches:
            t += batch.t.tolist()
    assert t == list(range(90, 100))
    assert counters == {"dropped_samples": 90}


async def test_what_the_thread_raises_comes_after_what_it_had_read():
    def work(outlet: ThreadOutlet) -> None:
        outlet.put("m", np.array([1.0]), np.zeros((1, 1), np.float32))
        raise OSError("pulled out")

    async with aclosing(read_in_thread(work, "test", {})) as batches:
        assert (await anext(batches)).t.tolist() == [1.0]
        with pytest.raises(OSError, match="pulled out"):
            await anext(batches)


async def test_a_driver_that_hangs_holds_nobody_up_for_long(monkeypatch):
    monkeypatch.setattr("edge_agent.sources.reader_thread._STOP_TIMEOUT_S", 0.05)
    leave = threading.Event()
    batches = read_in_thread(lambda _: leave.wait(10) and None, "hangs", {})
    task = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])
    assert "hangs" in {thread.name for thread in threading.enumerate()}, "nobody waits for it"
    leave.set()
