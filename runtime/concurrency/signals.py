"""Wake-ups between parts of a daemon: a signal that something changed.

Writer and waiter are given the same object, so neither needs to know the other.
"""

import asyncio

from runtime.clock import Clock


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
