"""Wake-ups between parts of a daemon: a signal that something changed, and a queue of distinct keys.

Writer and waiter are given the same object, so neither needs to know the other.
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
        """Wake the waiter; setting it again before the wait has no effect."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether it was set since the last wait."""
        return self._event.is_set()

    def clear(self) -> None:
        """Reset it without a wait."""
        self._event.clear()

    async def wait(self, timeout_s: float | None = None, clock: Clock | None = None) -> bool:
        """Wait until the signal is set, and reset it.

        Args:
            timeout_s: seconds after which the wait ends anyway; None waits for ever.
            clock: measures ``timeout_s``; default: the event loop.

        Returns:
            Whether the signal was set; False after the time-out.
        """
        was_set = await _wait(self._event, timeout_s, clock)
        if was_set:
            self._event.clear()
        return was_set


class KeyedQueue(Generic[K]):
    """Distinct keys that wait for work, oldest first; adding a key again changes nothing."""

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
        """Wait until there are keys, and take all of them.

        Args:
            timeout_s: seconds after which the wait ends anyway; None waits for ever.
            clock: measures ``timeout_s``; default: the event loop.

        Returns:
            The keys in order of arrival; empty after the time-out.
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
