"""What the demo of routed experts has seen, as plain data: ``report.json``."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lichen_lab.demo.core.results import ObserverStory, WindowResults


@dataclass
class ModelMove:
    """One device in one round: what it read and learned, on which domain, and its bytes on the wire."""

    round: int
    modalities: tuple[str, ...]
    targets: tuple[str, ...]
    domain: int | None
    route: tuple[str, ...]
    """Names of the blobs that the method gives such a device in that domain."""
    fetched: tuple[str, ...]
    """Names of those that it fetched: of its route, what had changed since."""
    sent: tuple[str, ...]
    """Names of those that its update moved."""
    down: int
    up: int

    @property
    def stray(self) -> tuple[str, ...]:
        """What it fetched or sent that is not on its route."""
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
class WatchStory:
    """One device. Scores are by target: a share of right windows, or r2; on people nobody trained on."""

    name: str
    person: int
    kind: str
    sensors: tuple[str, ...]
    targets: tuple[str, ...]
    later: tuple[str, ...] = ()
    observes: bool = False
    """Never trained."""
    windows: int = 0
    moves: list[ModelMove] = field(default_factory=list)
    bundle: Bundle | None = None
    scores: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    predictions: int = 0
    """Windows of its own live stream that the last model has predicted."""
    live: float | None = None
    """The share of them whose exercise was right; a training device has learned on the same person."""
    starts: int = 0
    """How often its process was started."""

    @property
    def changes(self) -> list[ModelMove]:
        """The first move, and those that read or learned something else than the one before."""
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
class RoutedObserver(ObserverStory):
    """The device that only predicts, all of its targets."""

    right: dict[str, float] = field(default_factory=dict)
    """By classification, the share of its live windows that were right."""
    values: list[tuple[float, float, float | None]] = field(default_factory=list)
    """Turning speed: seconds of its stream, said, true where known."""
    explained: float | None = None
    """r2 of these."""


@dataclass(kw_only=True)
class RoutedStory(WindowResults):
    """Everything. Versions are judged on the whole supernet with all sensors; metrics are of all targets."""

    targets: dict[str, tuple[str, ...]]
    """By name its classes; none for a regression."""
    devices: list[WatchStory] = field(default_factory=list)
    blobs: dict[str, int] = field(default_factory=dict)
    """All of the supernet: bytes by blob name."""
    supernet_up: int | None = None
    """Bytes of an update that moves all of one domain's supernet, as it would be sent."""
    plugged_after: int | None = None
    """The round after which the later sensors were plugged in; None: never."""
    observer: RoutedObserver | None = None
    missed: int = 0
    """Messages that the onlooker had no room for: so many are not counted in what was moved."""

    @property
    def supernet(self) -> int:
        """Bytes of all its blobs."""
        return sum(self.blobs.values())

    @property
    def trained(self) -> list[WatchStory]:
        """The devices that trained."""
        return [device for device in self.devices if not device.observes]

    def chance(self, target: str) -> float:
        """What guessing reaches: of a regression r2 = 0, which is always the mean."""
        classes = self.targets[target]
        return 1 / len(classes) if classes else 0.0


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
