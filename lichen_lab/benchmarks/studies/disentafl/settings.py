"""Settings, fleets and outcomes of the study's runs. Torch-free."""

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
"""Device name -> target -> score, 0 to 100."""
NETWORK: Final = ("width", "latent", "hidden", "lr", "batch", "epochs")
"""Fields of a setting that are also options of the product's method."""


class WindowJudge(Protocol):
    """Classifies windows of one modality; trained without any device's data."""

    def __call__(self, x_BCT: FloatArray) -> NDArray[np.int64]:
        """(B,) class of each window, in the modality's raw units."""
        ...


@dataclass(frozen=True)
class TargetDevice:
    """One device.

    Attributes:
        name: unique in its fleet.
        kind: its inputs and targets in words; devices of one kind have the same profile.
        profile: its inputs and targets. Its windows also hold the modality that it generates, which is not
            an input.
        train: without labels of other targets, and without modalities that it neither reads nor generates.
        test: likewise; used for scores.
        truth: generated target -> (B,) class that each test window should show, for the fleet's judge.
        train_truth: likewise for the training windows; only ``fleets.held_out`` evaluates with it.
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
    """Devices that learn one task together.

    Attributes:
        name: of the fleet.
        task: names, shapes and units; the run sets method and options.
        members: devices in a fixed order.
        judges: generated target -> classifier of its windows.
    """

    name: str
    task: Task
    members: tuple[TargetDevice, ...]
    judges: Mapping[str, WindowJudge] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, tuple[TargetDevice, ...]]:
        """Devices by kind, in order of first use: the groups of "FedAvg per group"."""
        names = dict.fromkeys(member.kind for member in self.members)
        return {name: tuple(m for m in self.members if m.kind == name) for name in names}

    def member(self, name: str) -> TargetDevice:
        """The device of that name; raises KeyError."""
        for member in self.members:
            if member.name == name:
                return member
        raise KeyError(f"fleet {self.name!r} has no member {name!r}")


@dataclass(frozen=True)
class DisentAflSetting:
    """Network and training, equal for all methods.

    Attributes:
        rounds: number of rounds; Local trains ``rounds * epochs`` epochs.
        lr: learning rate of Adam on the devices.
        batch: windows a batch.
        epochs: local epochs a round.
        width: d of the encoders.
        latent: d_latent of the experts.
        hidden: of a decoder, before its last layer.
        options: the method's own options.
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
    """Outcome of a run.

    Attributes:
        personal: scores of each device's own model after its last local training.
        aggregate: scores of the model that each device would begin the next round with, whatever it keeps of
            its own included; None for Local.
        by_round: (round, mean of ``personal``) at some rounds, the last one included.
        bytes_up: device -> payload bytes sent, mean over its rounds.
        bytes_down: likewise received.
        kinds: device -> its kind.
        newcomer: scores of what a device of the same profile gets that has nothing of its own: the fleet's
            parts alone. What nobody sends, as a private last layer, has its initial values. None for Local.
        domains: device -> domain -> rounds in which the device trained that domain's experts.
    """

    personal: Scores
    aggregate: Scores | None = None
    by_round: list[tuple[int, float]] = field(default_factory=list)
    bytes_up: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    newcomer: Scores | None = None
    domains: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean score of the personal models over all devices: the tables' figure."""
        return fleet_mean(self.personal)


def fleet_mean(scores: Scores) -> float:
    """Mean over devices of each device's mean over its targets.

    Raises:
        StatisticsError: there are no devices, or one has no targets.
    """
    return fmean(fmean(by_target.values()) for by_target in scores.values())


def looks(round_: int, rounds: int) -> bool:
    """Whether the personal models are evaluated in that round."""
    return round_ % 10 == 0 or round_ == rounds
