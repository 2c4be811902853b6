"""Latencies of answers: counts in fixed buckets, so that memory is bounded. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

BOUNDS_S: Final = tuple(m * 10.0**e for e in range(-4, 2) for m in (1, 2, 5))[:-2]
"""Upper ends: 0.1 ms, 0.2, 0.5, 1 ... 10 s; the last bucket has no end."""


class Latency:
    """A histogram."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.count = 0
        self.sum_s = 0.0
        self.most_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count ``times`` answers of this latency."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += times
        self.count += times
        self.sum_s += seconds * times
        self.most_s = max(self.most_s, seconds)

    def since(self, counts: Sequence[int]) -> "Latency":
        """The answers after the moment when :attr:`counts` were these; the maximum is of all."""
        later = Latency()
        later.counts = [now - before for now, before in zip(self.counts, counts, strict=True)]
        later.count, later.most_s = sum(later.counts), self.most_s
        return later

    def quantile_s(self, share: float) -> float | None:
        """An upper bound of this quantile of all latencies; None if there are none."""
        wanted, so_far = share * self.count, 0
        for bound, count in zip((*BOUNDS_S, self.most_s), self.counts, strict=True):
            so_far += count
            if count and so_far >= wanted:
                return min(bound, self.most_s)
        return None

    def summary(self) -> dict[str, Any]:
        """For ``status.json``: milliseconds; only non-empty buckets, by their upper end."""
        if not self.count:
            return {"count": 0}
        ends = [f"{1000 * bound:g}" for bound in BOUNDS_S] + ["inf"]
        return {
            "count": self.count,
            "mean_ms": round(1000 * self.sum_s / self.count, 3),
            **{f"p{p}_ms": _ms(self.quantile_s(p / 100)) for p in (50, 95, 99)},
            "max_ms": _ms(self.most_s),
            "buckets_ms": {end: n for end, n in zip(ends, self.counts, strict=True) if n},
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
