"""What a run of the study is given, and what it leaves. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from lichen_lab.benchmarks.study import run_spec
from models.contract import WindowSet
from protocol.tasks.task import Task

Scores = dict[str, dict[str, float]]
"""Test set -> ``f1`` and ``accuracy``, both in %; f1 is the mean over the classes."""
TRAINED: Final = "trained"
"""The version that the last round gave."""
TUNED: Final = "fine-tuned"
"""That version, encoders and head trained further together on the labelled windows."""
HERE: Final = "test people"
"""The test set that every fleet has: people whom neither a device nor the coordinator has met."""


@dataclass(frozen=True)
class DealConditions:
    """Who has which windows.

    Attributes:
        devices: that stream unlabelled windows; of fleets with a person a device, at most so many.
        alpha: of the Dirichlet shares in which the devices divide each class among them.
        labelled: share of the training people's windows that the coordinator holds, with labels.
        missing: probability that a device lacks a modality, for each by itself; one that lacks all of them
            takes no part.
        broken: a fault of :data:`lichen_lab.benchmarks.studies.tactfl.data.faults.FAULTS` that the first
        device has; empty: none.
        shift: how devices differ in the way they are worn: names of
        :data:`lichen_lab.benchmarks.studies.tactfl.data.hapt.SHIFTS`.
        context_s: seconds of stream that devices keep with a window; None: the window alone.
        windows: at most so many on a device; None: all.
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
        kind: how it differs from others, in words; empty: it does not.
        windows: without any label.
    """

    name: str
    kind: str
    windows: WindowSet


@dataclass(frozen=True)
class UnlabelledFleet:
    """Devices without labels, and a coordinator with a few.

    Attributes:
        name: of the fleet.
        task: names, shapes and units; its network and options are set by the run.
        members: in a fixed order; those that lack every modality are not among them.
        labelled: the coordinator's windows.
        tests: labelled windows to judge on, by name; :data:`HERE` first.
    """

    name: str
    task: Task
    members: tuple[UnlabelledDevice, ...]
    labelled: WindowSet
    tests: Mapping[str, WindowSet]


@dataclass(frozen=True)
class TactflSetting:
    """The network and the training that every method is given.

    Attributes:
        rounds: of the fleet.
        epochs: of a device in a round.
        lr: of Adam on the devices.
        batch: windows, on devices and at the coordinator.
        encoder: ``cnn1d`` or ``lstm``, of both modalities.
        width: channels of its first convolution, or hidden units.
        depth: convolutions, or stacked layers.
        feature_dim: D.
        hidden_dim: of the head.
        aggregator: ``task.aggregator``, of methods that have one; empty: federated averaging.
        tune_epochs: passes over the labelled windows in which encoders and head are trained together: at the
            end (:data:`TUNED`), or by round in methods whose coordinator trains the whole model in each.
        tune: options of that training, as the product's method names them.
        options: of the method alone, by its own names.
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
            tune_epochs=min(2, self.setting.tune_epochs),
            options={**self.setting.options, "head_epochs": 2},
        )
        return replace(self, setting=few, small=True)


@dataclass(frozen=True)
class TactflOutcome(run_spec.RunOutcome):
    """What a run leaves.

    Attributes:
        scores: :data:`TRAINED` and, where the method has it, :data:`TUNED` -> scores by test set.
        by_round: (round, f1 in % on :data:`HERE` then), the last round among them.
        shares: device -> its mean weight over rounds and the parts it sends, in shares of an equal one.
        last_shares: likewise, of the last round alone.
        kinds: device -> its kind.
        bytes_up: payload bytes of a device and round, mean; 0 where updates are not written as frames.
        refused: updates that were not taken.
    """

    scores: dict[str, Scores]
    by_round: list[tuple[int, float]] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    last_shares: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    bytes_up: float = 0.0
    refused: int = 0

    def view(self, end: str, test: str) -> Self:
        """The same run, of which that end alone is known, on that test set alone."""
        return replace(self, scores={TRAINED: {HERE: self.scores[end][test]}})

    def f1(self, end: str = TRAINED, test: str = HERE) -> float:
        """Mean F1 over the classes, in %; raises KeyError where the method has no such end."""
        return self.scores[end][test]["f1"]
