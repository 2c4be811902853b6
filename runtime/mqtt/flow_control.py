"""Who may publish next: slots in flight, control before chunks, and a pace that services like AWS demand.

A publish needs a slot, which it keeps until its PUBACK, and the buckets' leave. Chunks get ``window`` slots;
one more is there for control messages alone, which also overtake chunks that wait. So that chunks are not
starved, one goes after ``_IN_A_ROW`` control messages. Within its lane, first come is first served.
"""

import asyncio
from collections import deque
from typing import Final

_IN_A_ROW: Final = 16
_CONTROL_BYTES: Final = 16 * 1024
_NOTHING: Final = 1e-6
"""A part of a unit that gets lost in the arithmetic."""
_PUBLISH_BURST: Final = 0.1
_BYTES_BURST: Final = 0.25
"""Of a second's allowance, what may go at once; the bucket fills with the rest of it a second. So no second,
wherever it begins, sees more than the allowance, as long as a packet is no larger than the burst."""


def is_bulk(topic: str, payload_bytes: int) -> bool:
    """Whether a message can wait for others: chunks, and whatever is as large as one."""
    return "/blob/" in topic or payload_bytes > _CONTROL_BYTES


class TokenBucket:
    """A token bucket; what is larger than the bucket goes when it is full, and leaves a debt.

    Args:
        allowance: so many units in any one second; 0 is no limit.
        burst: the share of them that may go at once.
    """

    def __init__(self, allowance: float, burst: float) -> None:
        self._size = max(allowance * burst, min(1.0, allowance))
        self._rate = max(allowance * (1.0 - burst), allowance * 0.1)
        self._level = self._size
        self._seen: float | None = None
        self.off = allowance <= 0

    def wait_s(self, units: float, now: float) -> float:
        """Seconds until so many may go; 0 for now."""
        if self.off:
            return 0.0
        if self._seen is not None:
            self._level = min(self._size, self._level + (now - self._seen) * self._rate)
        self._seen = now
        lacks = min(units, self._size) - self._level
        return lacks / self._rate if lacks > _NOTHING else 0.0

    def take(self, units: float) -> None:
        """They go; call :meth:`wait_s` before."""
        self._level -= units


class FlowControl:
    """The slots of one connection.

    Args:
        slots: packets without PUBACK that the broker takes (its Receive Maximum).
        window: chunks in flight, at most.
        publishes_per_s: 0 is no limit.
        bytes_per_s: of whole packets; 0 is no limit.
    """

    def __init__(
        self, slots: int, window: int, publishes_per_s: float = 0.0, bytes_per_s: float = 0.0
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = min(slots, window + 1)
        self._bulk_free = max(1, min(window, self._free - 1))
        self._control: deque[tuple[asyncio.Future[None], int]] = deque()
        self._bulk: deque[tuple[asyncio.Future[None], int]] = deque()
        self._publishes = TokenBucket(publishes_per_s, _PUBLISH_BURST)
        self._bytes = TokenBucket(bytes_per_s, _BYTES_BURST)
        self._timer: asyncio.TimerHandle | None = None
        self._in_a_row = 0
        self._closed = False

    async def enter(self, size: int, *, bulk: bool) -> None:
        """Wait for a slot and for the pace; give it back by :meth:`leave`. Returns at once when closed."""
        if self._closed:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        (self._bulk if bulk else self._control).append((future, size))
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._wake()  # who waited behind it may go
            else:
                self.leave(bulk=bulk)
            raise

    def leave(self, *, bulk: bool) -> None:
        """A packet has its PUBACK."""
        self._free += 1
        self._bulk_free += bulk
        self._wake()

    def close(self) -> None:
        """The connection is over: nobody waits any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in (*self._control, *self._bulk):
            if not future.done():
                future.set_result(None)
        self._control.clear()
        self._bulk.clear()

    def _wake(self) -> None:
        """Let go whoever may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while not self._closed and (lane := self._turn()) is not None:
            future, size = lane[0]
            now = self._loop.time()
            pause = max(self._publishes.wait_s(1, now), self._bytes.wait_s(size, now))
            if pause > 0:
                self._timer = self._loop.call_later(pause, self._wake)
                return
            lane.popleft()
            self._publishes.take(1)
            self._bytes.take(size)
            self._free -= 1
            self._bulk_free -= lane is self._bulk
            self._in_a_row = 0 if lane is self._bulk else self._in_a_row + 1
            future.set_result(None)

    def _turn(self) -> deque[tuple[asyncio.Future[None], int]] | None:
        """Whose turn it is; those that gave up are removed."""
        for lane in (self._control, self._bulk):
            while lane and lane[0][0].done():
                lane.popleft()
        bulk_can = bool(self._bulk) and self._free > 0 and self._bulk_free > 0
        if self._control and self._free > 0 and not (bulk_can and self._in_a_row >= _IN_A_ROW):
            return self._control
        return self._bulk if bulk_can else None
