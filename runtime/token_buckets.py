"""Token buckets: what may be done at a rate, with a burst. Time is given, so they are pure."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_NAMES: Final = 100_000


@dataclass
class Bucket:
    """Holds ``burst`` tokens and is full at first; ``a_second`` of them come back in a second.

    A clock that goes back gives nothing and takes nothing.
    """

    burst: float
    a_second: float
    left: float = -1.0
    at: float = 0.0

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take tokens, all or none.

        Args:
            now: monotonic seconds.
            tokens: at most ``burst``, else there are never enough.
        """
        before = self.burst if self.left < 0 else self.left
        self.left = min(self.burst, before + max(0.0, now - self.at) * self.a_second)
        self.at = now
        if self.left < tokens:
            return False
        self.left -= tokens
        return True


class Buckets:
    """One bucket for each name. Of more than ``most`` names, the one used longest ago is forgotten."""

    def __init__(self, burst: float, a_second: float, most: int = MAX_NAMES) -> None:
        self._burst = burst
        self._a_second = a_second
        self._most = most
        self._named: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._named)

    def take(self, name: str, now: float, tokens: float = 1.0) -> bool:
        """Take tokens of that name's bucket, all or none."""
        bucket = self._named.pop(name, None) or Bucket(self._burst, self._a_second)
        self._named[name] = bucket
        if len(self._named) > self._most:
            self._named.popitem(last=False)
        return bucket.take(now, tokens)
