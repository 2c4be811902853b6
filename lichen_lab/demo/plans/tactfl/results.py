"""What the demo without labels has seen, as plain data: ``report.json``."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from lichen_lab.demo.core.results import DeviceStory, WindowResults

RANDOM: Final = "random encoders, never trained"
LABELLED: Final = "the labelled windows alone"
"""The names of the two rivals of the fleet."""


@dataclass
class Weighed:
    """What the coordinator made of the devices of one round, by part of the model (a blob's name).

    A device without the part is in neither table.
    """

    round: int
    weights: dict[str, dict[str, float]]
    """Part -> device -> its share of that part's sum; each part's add up to 1."""
    similarity: dict[str, dict[str, dict[str, float]]]
    """Part -> device -> device -> -1 to 1."""
    warnings: tuple[str, ...] = ()

    def equal(self, part: str) -> float:
        """The share that each device of a part would have if all weighed the same."""
        return 1 / len(self.weights[part])


@dataclass
class Rival:
    """Another way to make a model from the same labelled windows: accuracy on the unseen people, by seed."""

    name: str
    accuracies: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float | None:
        """None where it was not judged."""
        return fmean(self.accuracies) if self.accuracies else None


@dataclass(kw_only=True)
class UnlabelledStory(WindowResults):
    """Everything."""

    devices: list[DeviceStory] = field(default_factory=list)
    labelled: list[int] = field(default_factory=list)
    """The coordinator's labelled windows by class."""
    broken: str = ""
    """The device whose sensors deliver noise."""
    weighed: list[Weighed] = field(default_factory=list)
    rivals: list[Rival] = field(default_factory=list)

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of the model that were weighed, sorted."""
        return tuple(sorted({part for one in self.weighed for part in one.weights}))

    @property
    def frozen(self) -> float | None:
        """Accuracy of the last version whose encoders the devices made alone: the one before fine-tuning."""
        known = [r.accuracy for r in self.rounds[:-1] if r.accuracy is not None]
        return known[-1] if known else None

    def shares(self, device: str, part: str) -> list[tuple[int, float]]:
        """Rounds in which a device took part in a part of the model, and its weight."""
        return [(w.round, w.weights[part][device]) for w in self.weighed if device in w.weights.get(part, {})]

    def relative(self, device: str) -> float | None:
        """A device's weight over the equal share, mean over parts and the later half of the rounds."""
        return _mean(
            one.weights[part][device] / one.equal(part)
            for one in self.weighed[len(self.weighed) // 2 :]
            for part in one.weights
            if device in one.weights[part]
        )

    def rival(self, name: str) -> Rival:
        """By name; one that was not judged has no accuracies."""
        return next((rival for rival in self.rivals if rival.name == name), Rival(name))


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None
