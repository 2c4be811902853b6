"""Retries with a time limit and messages."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from protocol.errors import Transient

T = TypeVar("T")
_FIRST_S: Final = 1.0
_SLOWEST_S: Final = 60.0


@dataclass
class RetryPolicy:
    """A limited wait.

    Args:
        limit_s: for everything together.
        say: shows a message to the waiting person, once for each new reason.
        now: monotonic seconds.
        sleep: waits seconds.
        rng: jitter.
    """

    limit_s: float
    say: Callable[[str], None]
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)
    _said: str = ""

    def __post_init__(self) -> None:
        self._until = self.now() + self.limit_s

    def retry(self, attempt: Callable[[], T]) -> T:
        """Repeat until it does not raise ``Transient``, with waits of up to 1, 2, 4 ... 60 s.

        Raises:
            Transient: the last one, when the time is over.
        """
        wait_s = _FIRST_S
        while True:
            try:
                return attempt()
            except Transient as error:
                pause = self.rng.uniform(wait_s / 2, wait_s)
                if not self.pause(pause, f"{error}; trying again for at most {self.left_s():.0f} s"):
                    raise
                wait_s = min(_SLOWEST_S, 2 * wait_s)

    def left_s(self) -> float:
        """Time until the limit, in seconds."""
        return max(0.0, self._until - self.now())

    def pause(self, seconds: float, because: str) -> bool:
        """Wait and show why; False, without a wait, if that would exceed the limit."""
        if seconds > self.left_s():
            return False
        reason = because.partition(";")[0]
        if reason != self._said:
            self._said = reason
            self.say(because)
        self.sleep(seconds)
        return True
