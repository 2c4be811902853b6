"""Order and pace of publishing: slots in flight, control before chunks, and rate limits of services like AWS.

A publish needs tokens of both buckets, and a slot until its PUBACK. Chunks get ``window`` slots; one more is
for control messages alone. Control messages overtake waiting chunks, but after ``_IN_A_ROW`` of them one
chunk goes first, so that chunks do not starve. Within a lane the order is first in, first out.
"""

import asyncio
import math
from collections import deque
from typing import Final

from runtime.pacing import TokenBucket

_IN_A_ROW: Final = 16
_CONTROL_BYTES: Final = 16 * 1024
_PUBLISH_BURST: Final = 0.1
_BYTES_BURST: Final = 0.25
"""Burst size, as a share of one second's allowance; the refill rate is the rest. This keeps any one-second
window below the allowance if packets are no larger than the burst."""


def is_bulk(topic: str, payload_bytes: int) -> bool:
    """Whether a message can wait for others: a chunk, or a message as large as one."""
    return "/blob/" in topic or payload_bytes > _CONTROL_BYTES


def pace(allowance: float, burst: float) -> TokenBucket:
    """A bucket with a limit for any one second; a larger packet is sent when it is full, and leaves a debt.

    Args:
        allowance: units per second; 0 is no limit.
        burst: the share of them that may be sent at once.
    """
    if allowance <= 0:
        return TokenBucket(math.inf, 0.0)
    return TokenBucket(
        max(allowance * burst, min(1.0, allowance)), max(allowance * (1.0 - burst), allowance * 0.1)
    )


class FlowControl:
    """The slots of one connection.

    Args:
        slots: packets without PUBACK that the broker accepts (its Receive Maximum).
        window: maximum number of chunks in flight.
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
        self._publishes = pace(publishes_per_s, _PUBLISH_BURST)
        self._bytes = pace(bytes_per_s, _BYTES_BURST)
        self._timer: asyncio.TimerHandle | None = None
        self._in_a_row = 0
        self._closed = False

    async def enter(self, size: int, *, bulk: bool) -> None:
        """Wait for a slot and the rate limits; :meth:`leave` releases the slot. Returns at once if closed."""
        if self._closed:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        (self._bulk if bulk else self._control).append((future, size))
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._wake()  # the waiters behind it may be next
            else:
                self.leave(bulk=bulk)
            raise

    def leave(self, *, bulk: bool) -> None:
        """A PUBACK came: release its slot."""
        self._free += 1
        self._bulk_free += bulk
        self._wake()

    def close(self) -> None:
        """The connection is over: wake all waiters."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in (*self._control, *self._bulk):
            if not future.done():
                future.set_result(None)
        self._control.clear()
        self._bulk.clear()

    def _wake(self) -> None:
        """Wake every waiter that may publish."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while not self._closed and (lane := self._turn()) is not None:
            future, size = lane[0]
            now = self._loop.time()
            pause = max(self._publishes.wait_s(now), self._bytes.wait_s(now, size))
            if pause > 0:
                self._timer = self._loop.call_later(pause, self._wake)
                return
            lane.popleft()
            self._publishes.spend()
            self._bytes.spend(size)
            self._free -= 1
            self._bulk_free -= lane is self._bulk
            self._in_a_row = 0 if lane is self._bulk else self._in_a_row + 1
            future.set_result(None)

    def _turn(self) -> deque[tuple[asyncio.Future[None], int]] | None:
        """The lane that may publish next; cancelled waiters are removed."""
        for lane in (self._control, self._bulk):
            while lane and lane[0][0].done():
                lane.popleft()
        bulk_can = bool(self._bulk) and self._free > 0 and self._bulk_free > 0
        if self._control and self._free > 0 and not (bulk_can and self._in_a_row >= _IN_A_ROW):
            return self._control
        return self._bulk if bulk_can else None
