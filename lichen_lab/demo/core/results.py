"""Results of a demo, as plain data: written as ``report.json``, drawn as ``report.html``.

Every plan adds results of its own to :class:`Results`.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter


@dataclass
class RoundResult:
    """One round: quality of its version, and payload bytes."""

    round: int
    accuracy: float | None
    """The demo's main metric: for most, the share of right windows of unseen people."""
    bytes_up: int
    """Sum over all rounds up to this one."""
    bytes_down: int
    accepted: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    """All that the coordinator measured, by name."""


@dataclass
class Check:
    """One check; if ``must``, the demo has failed without it."""

    what: str
    ok: bool
    detail: str
    must: bool = True


@dataclass(kw_only=True)
class Results:
    """Results that every demo has."""

    rounds: list[RoundResult] = field(default_factory=list)
    """Finished rounds."""
    events: list[tuple[float, str]] = field(default_factory=list)
    """Seconds since the start, and what happened."""
    checks: list[Check] = field(default_factory=list)
    chaos: bool = False
    struck: str = ""
    """The device that was killed together with the coordinator."""
    struck_round: int = 0
    returned: tuple[str, ...] = ()
    """The killed processes that ran with a new process id after the last round."""
    reconnected: bool = False
    """Whether the killed device was connected after the last round."""
    seconds: float = 0.0
    version: str = ""

    @property
    def worked(self) -> bool:
        """Whether all checks that must hold do hold."""
        return bool(self.checks) and all(check.ok for check in self.checks if check.must)

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that :meth:`save` wrote."""
        return TypeAdapter(cls).validate_python(json.loads(path.read_text()))


@dataclass
class DeviceResults:
    """One training device. Shares are 0 to 1; ``alone`` is its own accuracy on the unseen people."""

    name: str
    people: tuple[int, ...]
    trouble: str
    windows: int = 0
    counts: dict[str, list[int]] = field(default_factory=dict)
    quality: dict[str, float] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    injected: dict[str, dict[str, float]] = field(default_factory=dict)
    """Modality -> kind of fault -> share of the time with that fault."""
    alone: float | None = None


@dataclass
class ObservedPrediction:
    """One window of the observing device."""

    t: float
    label: str
    truth: str | None
    confidence: float
    present: dict[str, bool]
    latency_ms: float = 0.0

    @property
    def right(self) -> bool | None:
        """None if the truth is unknown."""
        return None if self.truth is None else self.label == self.truth


@dataclass
class ObserverResults:
    """The device that only predicts."""

    name: str
    person: int
    python: str
    torch_free: bool
    how: str
    version: int | None = None
    memory_mb: float | None = None
    """Proportional set size of its processes after start (PSS: shared pages divided among their users)."""
    rss_mb: float | None = None
    predictions: list[ObservedPrediction] = field(default_factory=list)
    fault: tuple[float, float] | None = None

    def accuracy(self, *, failing: bool | None = None) -> float | None:
        """The share of right predictions; ``failing`` picks those inside or outside of the fault."""
        chosen = [p for p in self.predictions if p.right is not None]
        if failing is not None and self.fault is not None:
            start, end = self.fault
            chosen = [p for p in chosen if (start < p.t <= end) is failing]
        return sum(bool(p.right) for p in chosen) / len(chosen) if chosen else None

    def latency_ms(self) -> float | None:
        """The median time from a window's end to its prediction."""
        times = sorted(p.latency_ms for p in self.predictions)
        return times[len(times) // 2] if times else None


@dataclass(kw_only=True)
class WindowResults(Results):
    """Further results of a demo on sensor windows."""

    labels: tuple[str, ...]
    modalities: tuple[str, ...]
    unseen: tuple[int, ...]
    """People whose windows judge the versions."""
    confusion: list[list[int]] = field(default_factory=list)
    """Confusion matrix of the last version: windows by true class (row) and predicted class (column)."""
    observer: ObserverResults | None = None

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last judged round."""
        known = [r.accuracy for r in self.rounds if r.accuracy is not None]
        return known[-1] if known else None

    @property
    def judged(self) -> int:
        """Number of windows that judged the last version."""
        return sum(map(sum, self.confusion))

    @property
    def macro_f1(self) -> float | None:
        """Macro F1 of the last judged version, over classes that occur or are predicted."""
        columns = [*zip(*self.confusion, strict=True)]
        both = [
            (row[k], sum(row) + sum(column))
            for k, (row, column) in enumerate(zip(self.confusion, columns, strict=True))
        ]
        scores = [2 * hits / size for hits, size in both if size]
        return sum(scores) / len(scores) if scores else None

    def take(self, history: Mapping[str, Any]) -> None:
        """Rounds and the confusion matrix, from the coordinator's history."""
        self.rounds = rounds_of(history)
        self.confusion = (history["confusion"] or {}).get("matrix", [])


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for one value)."""
    numbers = list(values)
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def rounds_of(history: Mapping[str, Any], metric: str = "accuracy") -> list[RoundResult]:
    """The rounds in which a version was judged, or devices sent something.

    Args:
        history: as ``lichen coordinator history`` prints it.
        metric: the demo's main one.
    """
    found: list[RoundResult] = []
    up = down = 0
    for row in history["rounds"]:
        up += row["bytes_up"] or 0
        down += row["bytes_down"] or 0
        if row["metrics"] or row["bytes_up"]:
            accepted = tuple(update["device"] for update in row["updates"] if not update["lost"])
            metrics = dict(row["metrics"])
            found.append(RoundResult(row["round"], metrics.get(metric), up, down, accepted, metrics))
    return found


def take_devices(devices: Iterable[DeviceResults], history: Mapping[str, Any]) -> None:
    """Fill in each device's report on its windows, from the coordinator's history."""
    last: dict[str, dict[str, Any]] = {u["device"]: u for row in history["rounds"] for u in row["updates"]}
    states = {row["device"]: row for row in history["devices"]}
    for device in devices:
        update, state = last.get(device.name), states.get(device.name) or {}
        if update is not None:
            device.windows = int(update["samples"])
            device.counts = {m: list(c) for m, c in update["counts"].items()}
            device.quality = dict(update["quality"])
            device.missing = dict(update["missing"])
        for modality, known in (state.get("modalities") or {}).items():
            device.reasons[modality] = list(known.get("reasons") or [])
