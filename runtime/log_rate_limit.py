"""What the log says of messages that anybody may send: a flood of them must not become one of the log."""

import time
from collections.abc import Callable
from typing import Final

BURST: Final = 50.0
A_SECOND: Final = 0.2
"""Lines that come back in a second: what goes on for ever is said every 5 s, 17,280 times a day."""


class Sparing:
    """A token bucket of lines; how many were left out is told with the next one.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left, self._at = BURST, now()
        self._unsaid = 0

    def unsaid(self) -> dict[str, int] | None:
        """None: say nothing. Else say it, with this key, if any: how many lines were left out before it."""
        now = self._now()
        self._left = min(BURST, self._left + max(0.0, now - self._at) * A_SECOND)
        self._at = now
        if self._left < 1.0:
            self._unsaid += 1
            return None
        self._left -= 1.0
        unsaid, self._unsaid = self._unsaid, 0
        return {"unsaid": unsaid} if unsaid else {}
