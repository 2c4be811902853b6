"""Results of the demo without labels, as plain data: ``report.json``."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from lichen_lab.demo.core.results import DeviceResults, WindowResults

RANDOM: Final = "random encoders, never trained"
LABELLED: Final = "the labelled windows alone"
"""The names of the two rivals of the fleet."""


@dataclass
class Weighing:
    """The coordinator's weights and similarities in one round, by part of the model (a blob's name).

    A device without the part is in neither table.
    """

    round: int
    weights: dict[str, dict[str, float]]
    """Part -> device -> its weight; the weights of a part add up to 1."""
    similarity: dict[str, dict[str, dict[str, float]]]
    """Part -> device -> device -> similarity, -1 to 1."""
    warnings: tuple[str, ...] = ()

    def equal(self, part: str) -> float:
        """The equal weight of all devices of a part."""
        return 1 / len(self.weights[part])


@dataclass
class Rival:
    """Another model from the same labelled windows: accuracy on unseen people, by seed."""

    name: str
    accuracies: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        """None if it was not evaluated."""
        return fmean(self.accuracies) if self.accuracies else None


@dataclass(kw_only=True)
class TactflResults(WindowResults):
    """All results."""

    devices: list[DeviceResults] = field(default_factory=list)
    labelled: list[int] = field(default_factory=list)
    """The coordinator's labelled windows by class."""
    broken: str = ""
    """The device whose sensors deliver noise."""
    weighed: list[Weighing] = field(default_factory=list)
    rivals: list[Rival] = field(default_factory=list)

    @property
    def parts(self) -> tuple[str, ...]:
        """Weighed parts of the model, sorted."""
        return tuple(sorted({part for one in self.weighed for part in one.weights}))

    @property
    def frozen(self) -> float | None:
        """Accuracy of the last version before fine-tuning."""
        known = [r.accuracy for r in self.rounds[:-1] if r.accuracy is not None]
        return known[-1] if known else None

    def shares(self, device: str, part: str) -> list[tuple[int, float]]:
        """(round, weight) of a device in a part of the model."""
        return [(w.round, w.weights[part][device]) for w in self.weighed if device in w.weights.get(part, {})]

    def relative(self, device: str) -> float | None:
        """A device's weight relative to the equal one: mean over parts and the later half of the rounds."""
        return _mean(
            one.weights[part][device] / one.equal(part)
            for one in self.weighed[len(self.weighed) // 2 :]
            for part in one.weights
            if device in one.weights[part]
        )

    def rival(self, name: str) -> Rival:
        """The rival with that name; without accuracies if it was not evaluated."""
        return next((rival for rival in self.rivals if rival.name == name), Rival(name))


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None
