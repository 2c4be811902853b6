"""The longest stall of an event loop, measured by a real one."""

import asyncio
import time

from runtime.concurrency.loop_stalls import EVERY_S, LoopStalls


def longest_s(stalls: LoopStalls) -> float:
    (family,) = stalls.metrics()
    return family.values[0][1]


async def test_a_stall_is_measured_while_it_lasts_and_once_when_it_is_over() -> None:
    stalls, held_s = LoopStalls(), 0.2
    with stalls.measured():
        await asyncio.sleep(0)
        time.sleep(held_s)  # noqa: ASYNC251 - the stall
        assert longest_s(stalls) >= held_s - 2 * EVERY_S, "it has not ended"
        await asyncio.sleep(2 * EVERY_S)
        assert longest_s(stalls) >= held_s - 2 * EVERY_S, "it has ended since"
        begun = time.monotonic()
        await asyncio.sleep(0)
        assert longest_s(stalls) <= time.monotonic() - begun + EVERY_S, "that one was read"
    assert longest_s(stalls) == 0.0, "nothing is measured any more"
