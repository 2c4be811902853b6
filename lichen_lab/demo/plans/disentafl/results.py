"""Results of the demo of routed experts, as plain data: ``report.json``."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lichen_lab.demo.core.results import ObserverResults, WindowResults


@dataclass
class ModelMove:
    """One device in one round: its modalities, targets, domain, and bytes on the wire."""

    round: int
    modalities: tuple[str, ...]
    targets: tuple[str, ...]
    domain: int | None
    route: tuple[str, ...]
    """Names of the blobs on such a device's route in that domain."""
    fetched: tuple[str, ...]
    """Names of the blobs that it fetched: those of its route that had changed."""
    sent: tuple[str, ...]
    """Names of the blobs in its update."""
    down: int
    up: int

    @property
    def stray(self) -> tuple[str, ...]:
        """Blobs that it fetched or sent and that are not on its route."""
        return tuple(sorted({*self.fetched, *self.sent} - set(self.route)))


@dataclass
class Bundle:
    """The exported model that a device runs at the end."""

    version: int
    digest: str
    size: int
    modalities: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass
class WatchResults:
    """One device. Scores are by target: a share of right windows, or r2; on people nobody trained on."""

    name: str
    person: int
    kind: str
    sensors: tuple[str, ...]
    targets: tuple[str, ...]
    later: tuple[str, ...] = ()
    observes: bool = False
    """It never trains."""
    windows: int = 0
    moves: list[ModelMove] = field(default_factory=list)
    bundle: Bundle | None = None
    scores: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    predictions: int = 0
    """Live windows that the last model has predicted."""
    live: float | None = None
    """Share of these with the right exercise; a training device has learned on the same person."""
    starts: int = 0
    """Number of starts of its process."""

    @property
    def changes(self) -> list[ModelMove]:
        """The first move, and those whose modalities or targets differ from the one before."""
        found: list[ModelMove] = []
        for move in self.moves:
            profile = (move.modalities, move.targets)
            if not found or profile != (found[-1].modalities, found[-1].targets):
                found.append(move)
        return found

    @property
    def down(self) -> float | None:
        """Mean bytes down in a round."""
        return _mean(move.down for move in self.moves)

    @property
    def up(self) -> float | None:
        """Mean bytes up in a round."""
        return _mean(move.up for move in self.moves)


@dataclass
class RoutedObserver(ObserverResults):
    """The device that only predicts, with all of its targets."""

    right: dict[str, float] = field(default_factory=dict)
    """By classification target, the share of right live windows."""
    values: list[tuple[float, float, float | None]] = field(default_factory=list)
    """Turning speed: second of its stream, predicted, true if known."""
    explained: float | None = None
    """r2 of these."""


@dataclass(kw_only=True)
class DisentaflResults(WindowResults):
    """All results. Versions are evaluated on the whole supernet with all sensors; metrics: all targets."""

    targets: dict[str, tuple[str, ...]]
    """Target -> its classes; none for a regression."""
    devices: list[WatchResults] = field(default_factory=list)
    blobs: dict[str, int] = field(default_factory=dict)
    """The whole supernet: blob name -> bytes."""
    supernet_up: int | None = None
    """Bytes of an update of one domain's whole supernet."""
    plugged_after: int | None = None
    """The round after which the later sensors were plugged in; None: never."""
    observer: RoutedObserver | None = None
    missed: int = 0
    """Messages dropped for lack of room, and so not counted."""

    @property
    def supernet(self) -> int:
        """Bytes of all its blobs."""
        return sum(self.blobs.values())

    @property
    def trained(self) -> list[WatchResults]:
        """The devices that trained."""
        return [device for device in self.devices if not device.observes]

    def chance(self, target: str) -> float:
        """Score of guessing; for a regression r2 = 0, the mean."""
        classes = self.targets[target]
        return 1 / len(classes) if classes else 0.0


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
