"""Makes the standard library's clocks and random numbers follow a simulation."""

import contextlib
import random
import time
from collections.abc import Iterator
from typing import Any, Protocol, Self, SupportsIndex

from lichen_lab.simulation.deterministic.machine.clock import EPOCH


class VirtualTime(Protocol):
    """A settable time."""

    def time(self) -> float:
        """Virtual seconds."""

    def pass_time(self, seconds: float | SupportsIndex) -> None:
        """Advance the time."""


@contextlib.contextmanager
def virtual_time(loop: VirtualTime, seed: int | str) -> Iterator[None]:
    """Let ``time.time``, ``monotonic`` and ``perf_counter`` follow the loop, and unseeded generators a seed.

    For code that takes them directly: figures in messages, jitter. Time that is handed in is better.
    """
    unseeded = random.Random(f"unseeded {seed}")  # noqa: S311 - a seed, not a secret

    class Seeded(random.Random):
        def __new__(cls, *args: Any) -> Self:
            return super().__new__(cls, *args)

        def __init__(self, x: Any = None) -> None:
            super().__init__(unseeded.random() if x is None else x)

    real = (time.time, time.monotonic, time.perf_counter, time.sleep, random.Random)
    time.time = lambda: EPOCH + loop.time()
    time.monotonic = time.perf_counter = loop.time
    time.sleep = loop.pass_time
    random.Random = Seeded  # type: ignore[misc] # for the length of a world
    try:
        yield
    finally:
        time.time, time.monotonic, time.perf_counter, time.sleep, random.Random = real  # type: ignore[misc] # put back
