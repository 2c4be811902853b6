"""Fair queue: each device has a queue of its own, and the queues are served in turn.

A device's messages are handled in order, one at a time. At most ``DEPTH`` messages and ``DEVICE_BYTES`` of
one device wait here. If its queue is full, the reader waits for it (and with the reader the broker and every
other device): this time is charged to the device, which has a budget of ``BLOCKING_BUDGET_S``, refilled
slowly. Once the budget is used up, messages that do not fit are dropped, so a device at full speed costs the
others no more than that. A dropped message costs its sender a delay: only a receipt clears its outbox.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

T = TypeVar("T")

DEPTH: Final = 8
DEVICE_BYTES: Final = 16 * 1024 * 1024
TOTAL_BYTES: Final = 64 * 1024 * 1024
BLOCKING_BUDGET_S: Final = 2.0
GIVEN_BACK: Final = 0.1
"""Seconds of budget refilled in a second."""


@dataclass
class _DeviceQueue(Generic[T]):
    """The waiting messages of one device; ``bytes`` includes the message that is being handled."""

    waiting: deque[tuple[T, int]] = field(default_factory=deque)
    bytes: int = 0
    busy: bool = False
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class FairQueue(Generic[T]):
    """Queues by device; :meth:`put` by one reader, :meth:`take` and :meth:`done` by workers.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lanes: dict[str, _DeviceQueue[T]] = {}
        self._turns: OrderedDict[str, None] = OrderedDict()
        """Devices with a message and no worker, in the order of their turns."""
        self._debts: dict[str, tuple[float, float]] = {}
        """Device -> seconds charged to it, and when that was."""
        self._news = asyncio.Condition()
        self._room = asyncio.Event()
        self.bytes = 0
        """Bytes of all messages that wait or are being handled."""
        self.most_bytes = 0
        """The largest value of it so far."""
        self.dropped = 0

    async def put(self, device: str, item: T, size: int) -> bool:
        """Queue a message; False: dropped, because the device's queue is full and its budget used up."""
        while self.bytes + size > TOTAL_BYTES and self.bytes:
            self._room.clear()
            await self._room.wait()
        lane = self._lanes.setdefault(device, _DeviceQueue())
        while not self._fits(lane, size):
            left = BLOCKING_BUDGET_S - self._used_budget(device)
            if left <= 0:
                self.dropped += 1
                return False
            began = self._now()
            await self._wait(lane, left)
            self._charge(device, self._now() - began)
        self._lanes[device] = lane  # it may have been emptied and removed meanwhile
        lane.waiting.append((item, size))
        lane.bytes += size
        self.bytes += size
        self.most_bytes = max(self.most_bytes, self.bytes)
        if not lane.busy:
            await self._offer(device)
        return True

    @staticmethod
    def _fits(lane: _DeviceQueue[T], size: int) -> bool:
        if not lane.waiting:
            return True
        return len(lane.waiting) < DEPTH and lane.bytes + size <= DEVICE_BYTES

    @staticmethod
    async def _wait(lane: _DeviceQueue[T], seconds: float) -> None:
        lane.moved.clear()
        try:
            async with asyncio.timeout(seconds):
                await lane.moved.wait()
        except TimeoutError:
            pass

    def _used_budget(self, device: str) -> float:
        owed, at = self._debts.get(device, (0.0, 0.0))
        return max(0.0, owed - GIVEN_BACK * (self._now() - at))

    def _charge(self, device: str, seconds: float) -> None:
        self._debts[device] = (self._used_budget(device) + seconds, self._now())
        for other in [one for one in self._debts if not self._used_budget(one)]:
            del self._debts[other]

    async def _offer(self, device: str) -> None:
        self._turns[device] = None
        async with self._news:
            self._news.notify()

    async def take(self) -> tuple[str, T, int]:
        """The next message of the device whose turn it is; call :meth:`done` afterwards."""
        async with self._news:
            while not self._turns:
                await self._news.wait()
            device, _ = self._turns.popitem(last=False)
        lane = self._lanes[device]
        lane.busy = True
        item, size = lane.waiting.popleft()
        return device, item, size

    async def done(self, device: str, size: int) -> None:
        """The message is handled: the device goes to the end of the line with its next one."""
        lane = self._lanes[device]
        lane.busy = False
        lane.bytes -= size
        self.bytes -= size
        lane.moved.set()
        self._room.set()
        if lane.waiting:
            await self._offer(device)
        else:
            del self._lanes[device]
