"""Settings, fleets and outcomes of the study's runs. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from lichen_lab.benchmarks.study import run_spec
from models.contract import WindowSet
from protocol.tasks.task import Task

Scores = dict[str, dict[str, float]]
"""Test set -> ``f1`` and ``accuracy``, both in %; f1 is the mean over the classes."""
TRAINED: Final = "trained"
"""The version of the last round."""
TUNED: Final = "fine-tuned"
"""That version with encoders and head trained further on the labelled windows."""
HERE: Final = "test people"
"""The test set of every fleet: people without windows on devices or at the coordinator."""


def alone(modality: str) -> str:
    """The name of the test set in which the windows of :data:`HERE` have only this modality."""
    return f"{modality} alone"


@dataclass(frozen=True)
class DealConditions:
    """How windows are spread over devices and coordinator.

    Attributes:
        devices: number of devices with unlabelled windows; a maximum if each device is one person.
        alpha: of the Dirichlet distribution of each class over the devices.
        labelled: share of the training people's windows that the coordinator holds with labels.
        missing: probability that a device lacks a modality, independently for each; a device without any
            modality is left out.
        broken: the first device's fault, a name of
            :data:`lichen_lab.benchmarks.studies.tactfl.data.dealing.FAULTS`; empty: none.
        shift: differences in how devices are worn, names of
            :data:`lichen_lab.benchmarks.studies.tactfl.data.hapt.SHIFTS`.
        context_s: seconds of stream stored with a window; None: only the window.
        windows: maximum on a device; None: all.
    """

    devices: int = 20
    alpha: float = 1.0
    labelled: float = 0.1
    missing: float = 0.0
    broken: str = ""
    shift: tuple[str, ...] = ()
    context_s: float | None = None
    windows: int | None = None


@dataclass(frozen=True)
class UnlabelledDevice:
    """One device.

    Attributes:
        name: unique in its fleet.
        kind: how it differs from other devices, in words; may be empty.
        windows: without labels.
    """

    name: str
    kind: str
    windows: WindowSet


@dataclass(frozen=True)
class UnlabelledFleet:
    """Devices without labels and a coordinator with some.

    Attributes:
        name: of the fleet.
        task: names, shapes and units; the run sets network and options.
        members: devices in a fixed order, without those that lack every modality.
        labelled: the coordinator's windows.
        tests: labelled test windows by name; :data:`HERE` first.
    """

    name: str
    task: Task
    members: tuple[UnlabelledDevice, ...]
    labelled: WindowSet
    tests: Mapping[str, WindowSet]


@dataclass(frozen=True)
class TactflSetting:
    """Network and training, equal for all methods.

    Attributes:
        rounds: number of rounds.
        epochs: of a device in a round.
        lr: learning rate of Adam on the devices.
        batch: windows a batch, on devices and at the coordinator.
        encoder: ``cnn1d`` or ``lstm``, for both modalities.
        width: channels of the first convolution, or hidden units.
        depth: number of convolutions or stacked layers.
        feature_dim: D.
        hidden_dim: of the head.
        chosen: number of devices that train in a round, drawn anew for each round; None: all.
        looks: rounds whose version is evaluated, beside the last one; empty: every fifth.
        aggregator: ``task.aggregator`` of methods that have one; empty: federated averaging.
        tune_epochs: passes over the labelled windows that train encoders and head together: at the end
            (:data:`TUNED`), or spread over the rounds if the coordinator trains the whole model in each.
        tune: options of that training, named as in the product's method.
        options: the method's own options.
    """

    rounds: int = 10
    epochs: int = 1
    lr: float = 0.001
    batch: int = 64
    encoder: str = "cnn1d"
    width: int = 16
    depth: int = 5
    feature_dim: int = 64
    hidden_dim: int = 64
    chosen: int | None = None
    looks: tuple[int, ...] = ()
    aggregator: Mapping[str, Any] = field(default_factory=dict)
    tune_epochs: int = 60
    tune: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TactflRun(run_spec.RunSpec[TactflSetting, DealConditions]):
    """A run; ``fleet`` is a name of ``data.fleets``, ``method`` one of ``names``."""

    setting: TactflSetting = TactflSetting()
    conditions: DealConditions = DealConditions()

    def tiny(self) -> Self:
        """Two short rounds of a small fleet."""
        few = replace(
            self.setting,
            rounds=2,
            width=8,
            looks=(),
            tune_epochs=min(2, self.setting.tune_epochs),
            options={**self.setting.options, "head_epochs": 2},
        )
        return replace(self, setting=few, small=True)


@dataclass(frozen=True)
class TactflOutcome(run_spec.RunOutcome):
    """Outcome of a run.

    Attributes:
        scores: :data:`TRAINED` and, if the method has it, :data:`TUNED` -> scores by test set.
        by_round: (round, F1 in % on :data:`HERE`), the last round included.
        shares: device -> its mean weight over rounds and parts, relative to an equal weight.
        kinds: device -> its kind.
        bytes_up: mean payload bytes of a device and round; 0 if updates are not written as frames.
        refused: number of refused updates.
    """

    scores: dict[str, Scores]
    by_round: list[tuple[int, float]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    bytes_up: float = 0.0
    refused: int = 0

    def view(self, end: str, test: str) -> Self:
        """The outcome reduced to one end, and one test set in the place of :data:`HERE`."""
        return replace(self, scores={TRAINED: {**self.scores[end], HERE: self.scores[end][test]}})

    def f1(self, end: str = TRAINED, test: str = HERE) -> float:
        """Mean F1 over the classes, in %; raises KeyError where the method has no such end."""
        return self.scores[end][test]["f1"]
