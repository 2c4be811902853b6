"""Ends the page when nobody has looked for a while: systemd starts it again at the next request."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.clock import Clock
from runtime.process.daemon import Finished

_LOOKS: Final = 4
"""Checks within the idle time."""


class IdleTimer:
    """Counts open requests.

    Args:
        limit_s: without a request for so long, the page ends; None: never.
        clock: measures it.
    """

    def __init__(self, limit_s: float | None, clock: Clock) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._open = 0
        self._last = clock.now()

    def watching(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted; a stream is open until its page closes it."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self._open += 1
            try:
                await app(scope, receive, send)
            finally:
                self._open -= 1
                self._last = self._clock.now()

        return counted

    async def run(self) -> None:
        """Wait. Raises Finished when nobody has looked for the limit."""
        if self._limit_s is None:
            return
        while True:
            await self._clock.sleep(self._limit_s / _LOOKS)
            if not self._open and self._clock.now() - self._last >= self._limit_s:
                raise Finished(f"nobody has looked for {self._limit_s:g} s")
