"""Time as an injected object, so that tests and simulations can control it."""

import asyncio
import time
from typing import Protocol

from runtime.kernel_clock import kernel_synchronised


class Clock(Protocol):
    """A service's source of time."""

    def now(self) -> float:
        """Monotonic seconds; only differences mean something."""

    def wall(self) -> float:
        """Unix seconds; for logs and people, never for the protocol: a Pi's clock may be an hour off."""

    def synchronised(self) -> bool | None:
        """Whether a time service keeps :meth:`wall` right; None: unknown."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of :meth:`now`."""


class SystemClock:
    """The machine's time."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix seconds."""
        return time.time()

    def synchronised(self) -> bool | None:
        """According to the kernel."""
        return kernel_synchronised()

    async def sleep(self, seconds: float) -> None:
        """Sleep in the event loop."""
        await asyncio.sleep(seconds)
