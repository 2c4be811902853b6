"""Distance of a model's answers from those of its first days, in bounded histograms. Pure.

Each window is counted in three histograms: the probability of the likeliest class, its margin to the second,
and the class. They are kept by the modalities that the model read. The reference is made of whole days, and
is compared with the last ``HOURS`` hours that had windows: both hold nights and days, so a daily rhythm is no
drift. How much the days of the reference differ among themselves is how much a day may differ.

Shapes: N windows, R modalities that the model reads, K classes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.base import Count, Digest, Wire

HOUR_S: Final = 3600.0
DAY_S: Final = 86400.0
HOURS: Final = 24
BINS: Final = 10
MAX_CLASSES: Final = 64
"""Further classes share the last bin."""
MAX_SUBSETS: Final = 8
REST: Final = "others"
"""Rarer combinations of modalities together."""
LEAST: Final = 0.2
"""A smaller distance is never a drift: days with 75 different stretches of activity differ by up to 0.19."""
MARGIN: Final = 1.5
"""The limit, over the largest distance of one day of the reference from the other ones."""
RECOVERED: Final = 0.8
"""Share of the limit below which a drift ends."""
IN_A_ROW: Final = 6
"""Hours that must agree before a drift begins or ends."""
_LONGEST_GAP_S: Final = 7 * DAY_S
"""A longer step of the clock is its correction, or a device that was away: no time has passed."""

Counts = NDArray[np.int64]
Stored = Annotated[dict[str, tuple[Count, ...]], Field(max_length=MAX_SUBSETS + 1)]


class StoredHour(Wire):
    """Histograms of one hour, by the number of the hour."""

    hour: Count
    counts: Stored


class StoredDrift(Wire):
    """The monitor on disk."""

    bundle: Digest
    elapsed_s: Annotated[float, Field(ge=0)] = 0.0
    reference: Annotated[tuple[Stored, ...], Field(max_length=31)] = ()
    hours: Annotated[tuple[StoredHour, ...], Field(max_length=HOURS + 1)] = ()
    judged: Count = 0
    streak: Annotated[int, Field(ge=-IN_A_ROW, le=IN_A_ROW)] = 0
    since: float | None = None


@dataclass(frozen=True)
class DriftFinding:
    """The largest distance over the combinations of modalities, relative to its limit.

    Attributes:
        subset: the modalities that the model read.
        distance: Hellinger distance, 0 to 1.
        limit: of it.
    """

    subset: str
    distance: float
    limit: float

    @property
    def ratio(self) -> float:
        """Over 1: further away than a usual day."""
        return self.distance / self.limit


@dataclass
class DriftMonitor:
    """Of one model.

    Attributes:
        bundle: digest of the model's bundle.
        days: of the reference.
        min_windows: with fewer, nothing is compared.
        since: Unix seconds since when it drifts; None: it does not.
        finding: of the last comparison; None: there was none yet.
    """

    bundle: str
    days: int
    min_windows: int
    since: float | None = None
    finding: DriftFinding | None = None
    _elapsed_s: float = 0.0
    _last_wall: float | None = None
    _reference: list[dict[str, Counts]] = field(default_factory=list)
    _hours: list[tuple[int, dict[str, Counts]]] = field(default_factory=list)
    _judged: int = 0
    _streak: int = 0

    @property
    def reference_left_s(self) -> float:
        """Seconds until the reference is complete."""
        return max(0.0, self.days * DAY_S - self._elapsed_s)

    def add(
        self, wall: float, names: Sequence[str], read_NR: NDArray[np.bool_], p_NK: NDArray[np.float32]
    ) -> None:
        """Count answered windows.

        Args:
            wall: now, in Unix seconds.
            names: of the modalities that the model reads.
            read_NR: in which windows it did.
            p_NK: its probabilities.
        """
        self._pass(wall)
        counts = self._place()
        for row_R in np.unique(read_NR, axis=0):
            name = "+".join(name for name, there in zip(names, row_R, strict=True) if there)
            found = histograms(p_NK[(read_NR == row_R).all(axis=1)])
            name = name if name in self._subsets() or len(self._subsets()) < MAX_SUBSETS else REST
            if name in counts and len(counts[name]) != len(found):
                continue  # of a damaged file
            counts[name] = counts[name] + found if name in counts else found

    def judge(self, wall: float) -> bool:
        """Compare, once an hour; whether a drift began or ended."""
        self._pass(wall)
        hour = int(self._elapsed_s // HOUR_S)
        full = [counts for number, counts in self._hours if number < hour][-HOURS:]
        if hour <= self._judged or len(full) < HOURS or self.reference_left_s:
            return False
        self._judged = hour
        self.finding = self._compared(full)
        if self.finding is None:
            return False
        before, ratio = self.since, self.finding.ratio
        if ratio > 1:
            self._streak = min(IN_A_ROW, max(0, self._streak) + 1)
        elif ratio < RECOVERED:
            self._streak = max(-IN_A_ROW, min(0, self._streak) - 1)
        else:
            self._streak = 0
        if self._streak >= IN_A_ROW and before is None:
            self.since = wall
        elif self._streak <= -IN_A_ROW:
            self.since = None
        return (before is None) != (self.since is None)

    def _pass(self, wall: float) -> None:
        if self._last_wall is not None and 0 < wall - self._last_wall <= _LONGEST_GAP_S:
            self._elapsed_s += wall - self._last_wall
        self._last_wall = wall

    def _place(self) -> dict[str, Counts]:
        """The histograms that take windows now."""
        day, hour = int(self._elapsed_s // DAY_S), int(self._elapsed_s // HOUR_S)
        if day < self.days:
            while len(self._reference) <= day:
                self._reference.append({})
            return self._reference[day]
        if not self._hours or self._hours[-1][0] != hour:
            self._hours = [*self._hours[-HOURS:], (hour, {})]
        return self._hours[-1][1]

    def _subsets(self) -> set[str]:
        return {name for counts in self._reference for name in counts if name != REST}

    def _compared(self, hours: Sequence[dict[str, Counts]]) -> DriftFinding | None:
        found = []
        for subset in sorted({name for counts in hours for name in counts}):
            days = [c for counts in self._reference if (c := counts.get(subset)) is not None]
            now = summed(c for counts in hours if (c := counts.get(subset)) is not None)
            if not days or min(windows_of(now), windows_of(summed(days))) < self.min_windows:
                continue
            found.append(DriftFinding(subset, distance(now, summed(days)), self._limit(days)))
        return max(found, key=lambda one: one.ratio, default=None)

    def _limit(self, days: Sequence[Counts]) -> float:
        """How far a day may be: more than the days of the reference are from each other."""
        usual = [day for day in days if windows_of(day) >= self.min_windows]
        apart = [
            distance(day, summed(other for other in usual if other is not day))
            for day in usual
            if len(usual) > 1
        ]
        return max(LEAST, MARGIN * max(apart)) if apart else 2 * LEAST

    def stored(self) -> StoredDrift:
        """For the disk."""
        return StoredDrift(
            bundle=self.bundle,
            elapsed_s=self._elapsed_s,
            reference=tuple(_plain(counts) for counts in self._reference),
            hours=tuple(StoredHour(hour=hour, counts=_plain(counts)) for hour, counts in self._hours),
            judged=self._judged,
            streak=self._streak,
            since=self.since,
        )

    @classmethod
    def of(cls, stored: StoredDrift, days: int, min_windows: int) -> "DriftMonitor":
        """From the disk; time in which the agent was not there counts from the next window on."""
        return cls(
            stored.bundle,
            days,
            min_windows,
            stored.since,
            None,
            stored.elapsed_s,
            None,
            [_arrays(counts) for counts in stored.reference],
            [(one.hour, _arrays(one.counts)) for one in stored.hours],
            stored.judged,
            stored.streak,
        )


def histograms(p_NK: NDArray[np.float32]) -> Counts:
    """Counts of windows by the highest probability, by margin, and by class, one after the other."""
    top_N2 = np.sort(p_NK.astype(np.float64), axis=1)[:, -2:]
    second_N = top_N2[:, 0] if p_NK.shape[1] > 1 else np.zeros(len(p_NK))
    kinds = min(MAX_CLASSES, p_NK.shape[1])
    return np.concatenate(
        [
            _binned(top_N2[:, -1]),
            _binned(top_N2[:, -1] - second_N),
            np.bincount(np.minimum(p_NK.argmax(axis=1), kinds - 1), minlength=kinds),
        ]
    ).astype(np.int64)


def distance(one: Counts, other: Counts) -> float:
    """The largest Hellinger distance of the three histograms."""
    if len(one) != len(other):
        return 1.0
    parts = zip(_parts(one), _parts(other), strict=True)
    return max(_hellinger(a, b) for a, b in parts)


def windows_of(counts: Counts) -> int:
    """Windows in a histogram."""
    return int(counts[:BINS].sum())


def summed(counts: Iterable[Counts]) -> Counts:
    """The sum of histograms of the same length; those of another length are left out."""
    listed = list(counts)
    alike = [one for one in listed if len(one) == len(listed[0])]
    return np.asarray(np.sum(alike, axis=0, dtype=np.int64), np.int64)


def _binned(values_N: NDArray[np.float64]) -> Counts:
    return np.bincount(np.clip((values_N * BINS).astype(np.int64), 0, BINS - 1), minlength=BINS)


def _parts(counts: Counts) -> tuple[Counts, Counts, Counts]:
    return counts[:BINS], counts[BINS : 2 * BINS], counts[2 * BINS :]


def _hellinger(a: Counts, b: Counts) -> float:
    if not a.sum() or not b.sum():
        return 0.0
    overlap = np.sqrt((a / a.sum()) * (b / b.sum())).sum()
    return float(np.sqrt(max(0.0, 1.0 - overlap)))


def _plain(counts: dict[str, Counts]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(found.tolist()) for name, found in counts.items()}


def _arrays(counts: Stored) -> dict[str, Counts]:
    return {name: np.array(found, np.int64) for name, found in counts.items()}
