"""A clock that tests move by hand."""

import asyncio
import heapq
import itertools


class ManualClock:
    """A clock that moves only by :meth:`advance`. Use it in one event loop.

    Args:
        start: first value of ``now``, in seconds.
        wall: first value of ``wall``, in Unix seconds.
    """

    def __init__(self, start: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now = start
        self._wall_offset = wall - start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self.is_synchronised: bool | None = None
        """The result of :meth:`synchronised`."""

    def now(self) -> float:
        """Seconds, moved by hand."""
        return self._now

    def wall(self) -> float:
        """Unix seconds, moved with ``now``."""
        return self._now + self._wall_offset

    def set_wall(self, wall: float) -> None:
        """Set the wall clock, in Unix seconds, as a person or a time service does; ``now`` stays."""
        self._wall_offset = wall - self._now

    def synchronised(self) -> bool | None:
        """As set by hand."""
        return self.is_synchronised

    @property
    def asleep(self) -> bool:
        """Whether anybody waits for the time: a service that works in a thread does not."""
        return any(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by ``seconds``."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float, turns: int = 10) -> None:
        """Advance the time; sleepers wake in the order of their times and see the time they asked for.

        Args:
            seconds: how far.
            turns: turns of the event loop for what wakes, before the next sleeper is due.
        """
        target = self._now + seconds
        for _ in range(turns):
            await asyncio.sleep(0)
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not future.done():
                future.set_result(None)
            for _ in range(turns):
                await asyncio.sleep(0)
        self._now = target
