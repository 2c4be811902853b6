"""For how long the event loop does not turn: a timer compares when it runs with when it should."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from runtime.metrics import MetricFamily, gauge

EVERY_S: Final = 0.025


class LoopStalls:
    """The longest stall since the last reading. Costs the loop one callback in ``EVERY_S``."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the running loop."""
        self._wait()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._due = time.monotonic() + EVERY_S  # not the loop's clock: uvloop reads it once a turn
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._turned)

    def _turned(self) -> None:
        self._longest_s = max(self._longest_s, time.monotonic() - self._due)
        self._wait()

    def metrics(self) -> Iterable[MetricFamily]:
        """The longest stall since the last call, also one that has not ended."""
        running_s = 0.0 if self._timer is None else time.monotonic() - self._due
        longest_s, self._longest_s = max(self._longest_s, running_s), 0.0
        words = "Longest time for which the event loop did not turn, since the last reading"
        yield gauge("lichen_loop_stall_seconds", words, longest_s)
