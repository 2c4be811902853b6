"""Rate limits: back-off and token buckets. Pure: time is an argument."""

from collections import OrderedDict
from typing import Final

MAX_NAMES: Final = 100_000
_ROUNDING: Final = 1e-6
"""Fraction of a token that rounding may lose."""


def backoff_s(first_s: float, limit_s: float, failures: int) -> float:
    """The pause after so many failures in a row: it doubles with each, up to a limit."""
    return min(limit_s, first_s * 2.0 ** min(failures, 30))


class TokenBucket:
    """Tokens that refill at a rate; full at first. A clock that goes back adds and removes none.

    Args:
        burst: tokens of a full bucket.
        per_second: tokens added per second.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, burst: float, per_second: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._left = burst
        self._at: float | None = None

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take tokens, all or none.

        Args:
            now: monotonic seconds.
            tokens: at most ``burst``, else there are never enough.
        """
        self._refill(now)
        if self._left < tokens:
            return False
        self._left -= tokens
        return True

    def wait_s(self, now: float, tokens: float = 1.0) -> float:
        """Seconds until so many tokens are available; for more than ``burst``, until the bucket is full."""
        self._refill(now)
        lacking = min(tokens, self._burst) - self._left
        return lacking / self._per_second if lacking > _ROUNDING else 0.0

    def spend(self, tokens: float = 1.0) -> None:
        """Take tokens after :meth:`wait_s`; taking too many leaves a debt."""
        self._left -= tokens

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_second)
        self._at = now


class TokenBuckets:
    """One bucket for each name. Beyond ``most`` names, the least recently used one is dropped."""

    def __init__(self, burst: float, per_second: float, most: int = MAX_NAMES) -> None:
        self._burst = burst
        self._per_second = per_second
        self._most = most
        self._named: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._named)

    def take(self, name: str, now: float, tokens: float = 1.0) -> bool:
        """Take tokens from that name's bucket, all or none."""
        bucket = self._named.pop(name, None) or TokenBucket(self._burst, self._per_second)
        self._named[name] = bucket
        if len(self._named) > self._most:
            self._named.popitem(last=False)
        return bucket.take(now, tokens)
