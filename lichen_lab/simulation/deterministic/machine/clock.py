"""The clock of one simulated machine: monotonic since its start, and a wall clock that may be wrong."""

import asyncio
from typing import Final

EPOCH: Final = 1_700_000_000.0
"""True unix seconds at the start of a simulation."""


class NodeClock:
    """A ``runtime.clock.Clock`` on the loop's virtual time; make one for each life.

    Args:
        loop: the world's.
        wrong_by_s: how far the wall clock is off; a Pi without a battery may be hours back at its start.
        uptime_s: what :meth:`now` says at first: a process may start long after its machine.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, wrong_by_s: float = 0.0, uptime_s: float = 0.0
    ) -> None:
        self._time = loop.time
        self._start = loop.time() - uptime_s
        self._offset = EPOCH + wrong_by_s
        self.jumps = 0

    def now(self) -> float:
        """Monotonic seconds of this life; jumps of the wall clock do not move it."""
        return self._time() - self._start

    def wall(self) -> float:
        """Unix seconds by this machine's clock."""
        return self._time() + self._offset

    def synchronised(self) -> bool | None:
        """Unknown: some of these clocks are wrong and jump."""
        return None

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative, as NTP or a person does."""
        self._offset += seconds
        self.jumps += 1

    @property
    def wrong_by_s(self) -> float:
        """How far the wall clock is off."""
        return self._offset - EPOCH
