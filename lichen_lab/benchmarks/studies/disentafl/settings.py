"""What a run of the study is given, and what it leaves. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.study import run_spec
from models.contract import FloatArray, Profile, WindowSet
from protocol.tasks.task import Task

Scores = dict[str, dict[str, float]]
"""TargetDevice's name -> target -> score, 0 to 100."""
NETWORK: Final = ("width", "latent", "hidden", "lr", "batch", "epochs")
"""Fields of a setting that are options of the product's method, too."""


class WindowJudge(Protocol):
    """Recognises what is in a window of one modality; it has seen no member's data."""

    def __call__(self, x_BCT: FloatArray) -> NDArray[np.int64]:
        """(B,) class of each window, in the modality's raw units."""
        ...


@dataclass(frozen=True)
class TargetDevice:
    """One device.

    Attributes:
        name: unique in its fleet.
        kind: what it reads and predicts, in words; members of a kind have the same profile.
        profile: the inputs it may read and the targets it learns. Its windows hold the modality that it
            generates too, though that is no input of its.
        train: labels of targets outside the profile are not in it, nor modalities that it neither reads nor
            generates.
        test: likewise; scores are made on it.
        truth: generation -> (B,) class of what each test window should show, for the fleet's judge.
        train_truth: likewise of the windows that train; nobody trains on it (``fleets.tuning`` judges by it).
    """

    name: str
    kind: str
    profile: Profile
    train: WindowSet
    test: WindowSet
    truth: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    train_truth: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetFleet:
    """Devices that learn one task.

    Attributes:
        name: of the fleet.
        task: names, shapes and units; its method and options are set by the run.
        members: in a fixed order.
        judges: generation -> what recognises the windows it makes.
    """

    name: str
    task: Task
    members: tuple[TargetDevice, ...]
    judges: Mapping[str, WindowJudge] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, tuple[TargetDevice, ...]]:
        """Members by kind, in order of first mention: the groups of "FedAvg per group"."""
        names = dict.fromkeys(member.kind for member in self.members)
        return {name: tuple(m for m in self.members if m.kind == name) for name in names}

    def member(self, name: str) -> TargetDevice:
        """The one of that name; raises KeyError."""
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(f"fleet {self.name!r} has no member {name!r}")


@dataclass(frozen=True)
class DisentAflSetting:
    """The network and the training that every method is given.

    Attributes:
        rounds: of the fleet; Local trains ``rounds * epochs`` epochs.
        lr: of Adam on the devices.
        batch: windows.
        epochs: local, in a round.
        width: d of the encoders.
        latent: d_latent of the experts.
        hidden: of a decoder, before its last layer.
        options: of the method alone, by its own names.
    """

    rounds: int = 40
    lr: float = 0.002
    batch: int = 32
    epochs: int = 1
    width: int = 64
    latent: int = 32
    hidden: int = 64
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DisentAflRun(run_spec.RunSpec[DisentAflSetting, None]):
    """A run; ``fleet`` is a name of ``data.fleets``, ``method`` one of ``names``."""

    setting: DisentAflSetting = DisentAflSetting()
    conditions: None = None

    def tiny(self) -> Self:
        """Two rounds of a small fleet."""
        return replace(self, setting=replace(self.setting, rounds=2), small=True)


@dataclass(frozen=True)
class DisentAflOutcome(run_spec.RunOutcome):
    """What a run leaves.

    Attributes:
        personal: each device's own model after its last local training.
        aggregate: what each device gets from the fleet before it trains; None where there is none (Local).
        by_round: (round, mean of ``personal`` then) at some rounds, the last one among them.
        bytes_up: member -> payload bytes sent, mean of the rounds it took part in.
        bytes_down: likewise received.
        kinds: member -> its kind.
    """

    personal: Scores
    aggregate: Scores | None = None
    by_round: list[tuple[int, float]] = field(default_factory=list)
    bytes_up: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Of the personal models over all devices: a table's figure."""
        return fleet_mean(self.personal)


def fleet_mean(scores: Scores) -> float:
    """Mean over devices of a device's mean over its targets.

    Raises:
        StatisticsError: there are no devices, or one has no targets.
    """
    return fmean(fmean(by_target.values()) for by_target in scores.values())


def looks(round_: int, rounds: int) -> bool:
    """Whether the personal models are looked at in that round."""
    return round_ % 10 == 0 or round_ == rounds
