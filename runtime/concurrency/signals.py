"""How parts of a daemon wake each other: a signal that something changed, and a queue of distinct keys.

Whoever writes and whoever waits are given the same object, so neither needs to know the other.
"""

import asyncio
from typing import Generic, TypeVar

from runtime.clock import Clock

K = TypeVar("K")


class Signal:
    """Something changed: many writers, one waiter."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiter; a signal that is set already stays set once."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether it was set since the last wait."""
        return self._event.is_set()

    def clear(self) -> None:
        """Forget that it was set."""
        self._event.clear()

    async def wait(self, timeout_s: float | None = None, clock: Clock | None = None) -> bool:
        """Wait until the signal is set, and reset it.

        Args:
            timeout_s: seconds after which the wait ends anyway; None waits for ever.
            clock: measures ``timeout_s``; without one the event loop does.

        Returns:
            Whether the signal was set; False when the time is over.
        """
        was_set = await _wait(self._event, timeout_s, clock)
        if was_set:
            self._event.clear()
        return was_set


class KeyedQueue(Generic[K]):
    """Distinct keys to attend to, oldest first; adding one that waits already changes nothing."""

    def __init__(self) -> None:
        self._keys: dict[K, None] = {}
        self._event = asyncio.Event()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, *keys: K) -> None:
        """Add keys, and wake the waiter."""
        self._keys.update(dict.fromkeys(keys))
        if keys:
            self._event.set()

    async def take_all(self, timeout_s: float | None = None, clock: Clock | None = None) -> tuple[K, ...]:
        """Wait until a key waits, and take all that do.

        Args:
            timeout_s: seconds after which the wait ends anyway; None waits for ever.
            clock: measures ``timeout_s``; without one the event loop does.

        Returns:
            The keys in the order in which they came; empty when the time is over.
        """
        await _wait(self._event, timeout_s, clock)
        self._event.clear()
        keys = tuple(self._keys)
        self._keys.clear()
        return keys


async def _wait(event: asyncio.Event, timeout_s: float | None, clock: Clock | None) -> bool:
    if event.is_set():
        return True
    if timeout_s is None:
        return await event.wait()
    timer = asyncio.ensure_future(clock.sleep(timeout_s) if clock is not None else asyncio.sleep(timeout_s))
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((timer, waiter), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        waiter.cancel()
    return event.is_set()
