"""What the demo has seen, as plain data: written as ``report.json``, drawn as ``report.html``."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from lichen.demo.rollout.story import RolloutStory
from lichen.demo.study import Line


@dataclass
class DeviceStory:
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
    """Modality -> kind of fault -> share of the time in which it really was there."""
    alone: float | None = None


@dataclass
class RoundStory:
    """One round: accuracy on unseen people after it, and the payload bytes it moved."""

    round: int
    accuracy: float | None
    bytes_up: int
    bytes_down: int
    accepted: tuple[str, ...] = ()


@dataclass
class Prediction:
    """One window of the observing device."""

    t: float
    label: str
    truth: str | None
    confidence: float
    present: dict[str, bool]
    latency_ms: float = 0.0

    @property
    def right(self) -> bool | None:
        """None where nobody knows the truth."""
        return None if self.truth is None else self.label == self.truth


@dataclass
class ObserverStory:
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
    predictions: list[Prediction] = field(default_factory=list)
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


@dataclass
class Sizes:
    """Bytes on the wire, MQTT and CBOR headers included."""

    prototypes_4bit: int
    delta_int8: int
    """A full update: the model's delta at int8, with its 4-bit prototypes."""
    delta_float32: int
    """The same update, all of it in float32."""
    parameters: int
    """The model's parameters alone in float32: no names, headers or prototypes (as ``lichen bench wire``)."""

    @property
    def ratio(self) -> float:
        """The int8 update as a share of the same one in float32."""
        return self.delta_int8 / self.delta_float32

    @property
    def ratio_to_parameters(self) -> float:
        """The int8 update as a share of the bare parameters in float32."""
        return self.delta_int8 / self.parameters


@dataclass
class Check:
    """One thing that was looked at; ``must`` says that the demo has failed without it."""

    what: str
    ok: bool
    detail: str
    must: bool = True


class Struck(Protocol):
    """A story in which processes may have been killed."""

    chaos: bool
    struck: str
    struck_round: int
    returned: tuple[str, ...]
    reconnected: bool

    @property
    def rounds(self) -> Sequence[RoundStory]:
        """Those that were finished."""


@dataclass
class Story:
    """Everything."""

    labels: tuple[str, ...]
    modalities: tuple[str, ...]
    unseen: tuple[int, ...]
    rounds: list[RoundStory] = field(default_factory=list)
    devices: list[DeviceStory] = field(default_factory=list)
    confusion: list[list[int]] = field(default_factory=list)
    observer: ObserverStory | None = None
    rollout: RolloutStory | None = None
    study: list[Line] = field(default_factory=list)
    sizes: Sizes | None = None
    events: list[tuple[float, str]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    chaos: bool = False
    struck: str = ""
    """The device that was killed together with the coordinator."""
    struck_round: int = 0
    returned: tuple[str, ...] = ()
    """Who of the killed ran with a new process id after the last round."""
    reconnected: bool = False
    """Whether the killed device was connected after the last round."""
    seconds: float = 0.0
    version: str = ""

    @property
    def accuracy(self) -> float | None:
        """Of the last round that was judged."""
        known = [r.accuracy for r in self.rounds if r.accuracy is not None]
        return known[-1] if known else None

    @property
    def judged(self) -> int:
        """Windows that the last version was judged on."""
        return sum(map(sum, self.confusion))

    @property
    def macro_f1(self) -> float | None:
        """Of the last version that was judged, over the classes that occur or are predicted."""
        columns = [*zip(*self.confusion, strict=True)]
        both = [
            (row[k], sum(row) + sum(column))
            for k, (row, column) in enumerate(zip(self.confusion, columns, strict=True))
        ]
        scores = [2 * hits / size for hits, size in both if size]
        return sum(scores) / len(scores) if scores else None

    @property
    def alone(self) -> list[float]:
        """What the devices reach by themselves."""
        return [d.alone for d in self.devices if d.alone is not None]

    @property
    def worked(self) -> bool:
        """Everything that must hold holds."""
        return bool(self.checks) and all(check.ok for check in self.checks if check.must)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))


_ADAPTER: TypeAdapter[Story] = TypeAdapter(Story)


def load(path: Path) -> Story:
    """Read what ``Story.save`` wrote."""
    content: Any = json.loads(path.read_text())
    return _ADAPTER.validate_python(content)
