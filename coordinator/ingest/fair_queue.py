"""Fair queue: each device has a queue of its own, and the queues are served in turn.

A device's messages are handled in order, one at a time. At most ``DEPTH`` messages and ``DEVICE_BYTES`` of
one device wait here. If its queue is full, the reader waits for it (and with the reader the broker and every
other device): this time is charged to the device, which has a budget of ``BLOCKING_BUDGET_S``, refilled
slowly. Once the budget is used up, messages that do not fit are dropped, so a device at full speed costs the
others no more than that. A dropped message costs its sender a delay: only a receipt clears its outbox.
"""

import asyncio
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


@dataclass(slots=True)
class _DeviceQueue(Generic[T]):
    """The waiting messages of one device; ``bytes`` includes the message that is being handled.

    Small, because in a storm there is one for each device of a fleet.
    """

    waiting: list[tuple[T, int]] = field(default_factory=list)
    """At most ``DEPTH``."""
    bytes: int = 0
    busy: bool = False
    """Whether a message is being handled, or the device waits for its turn."""
    moved: asyncio.Event | None = None
    """While the reader waits for room."""


class FairQueue(Generic[T]):
    """Queues by device; :meth:`put` by one reader, :meth:`take` and :meth:`done` by workers.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lanes: dict[str, _DeviceQueue[T]] = {}
        self._turns: asyncio.Queue[str] = asyncio.Queue()
        """Devices with a message and no worker, in the order of their turns."""
        self._debts: dict[str, tuple[float, float]] = {}
        """Device -> seconds charged to it, and when that was."""
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
            lane.busy = True
            self._turns.put_nowait(device)
        return True

    @staticmethod
    def _fits(lane: _DeviceQueue[T], size: int) -> bool:
        if not lane.waiting:
            return True
        return len(lane.waiting) < DEPTH and lane.bytes + size <= DEVICE_BYTES

    @staticmethod
    async def _wait(lane: _DeviceQueue[T], seconds: float) -> None:
        lane.moved = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await lane.moved.wait()
        except TimeoutError:
            pass
        finally:
            lane.moved = None

    def _used_budget(self, device: str) -> float:
        owed, at = self._debts.get(device, (0.0, 0.0))
        return max(0.0, owed - GIVEN_BACK * (self._now() - at))

    def _charge(self, device: str, seconds: float) -> None:
        self._debts[device] = (self._used_budget(device) + seconds, self._now())
        for other in [one for one in self._debts if not self._used_budget(one)]:
            del self._debts[other]

    async def take(self) -> tuple[str, T, int]:
        """The next message of the device whose turn it is; call :meth:`done` afterwards."""
        device = await self._turns.get()
        item, size = self._lanes[device].waiting.pop(0)
        return device, item, size

    def done(self, device: str, size: int) -> None:
        """The message is handled: the device goes to the end of the line with its next one."""
        lane = self._lanes[device]
        lane.bytes -= size
        self.bytes -= size
        if lane.moved is not None:
            lane.moved.set()
        self._room.set()
        if lane.waiting:
            self._turns.put_nowait(device)
        else:
            lane.busy = False  # the reader may be about to fill it again
            del self._lanes[device]
