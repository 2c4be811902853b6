import asyncio

from runtime.concurrency.signals import Signal
from tests.support.clock import ManualClock


async def test_a_signal_that_was_set_before_the_wait_is_not_lost_and_is_reset_by_it() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    assert await signal.wait()
    assert not signal.is_set()
    assert not await signal.wait(timeout_s=0.01)


async def test_a_signal_wakes_a_waiter_before_its_time_is_over() -> None:
    signal, clock = Signal(), ManualClock()
    waiting = asyncio.create_task(signal.wait(30.0, clock))
    await asyncio.sleep(0)
    signal.set()
    assert await waiting


async def test_the_time_of_a_wait_is_measured_by_the_clock() -> None:
    signal, clock = Signal(), ManualClock()
    waiting = asyncio.create_task(signal.wait(30.0, clock))
    for _ in range(3):
        await asyncio.sleep(0)
    await clock.advance(30.0)
    assert await asyncio.wait_for(waiting, 5) is False


async def test_a_cancelled_wait_leaves_the_signal_set() -> None:
    signal = Signal()
    waiting = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    signal.set()
    assert await signal.wait(timeout_s=1.0)
