"""Training loop of all baselines: devices train, means are folded, the coordinator trains. Imports torch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    TRAINED,
    TactflOutcome,
    TactflSetting,
    UnlabelledDevice,
    UnlabelledFleet,
)
from lichen_lab.benchmarks.studies.tactfl.shared import StudyCoordinator, chosen, task_of
from lichen_lab.benchmarks.studies.tactfl.variants import BASELINES as TITLES
from lichen_lab.benchmarks.study import federation as study
from models.aggregation.server_optimizer import model_of, rejoined, stepped
from models.contract import Blobs
from protocol.tasks.folding import Aggregator
from protocol.tasks.task import Task

OPTIMISED: Final = ("encoder", "head", "decoder")
_FOR_OURS: Final = (
    "head_epochs",
    "head_every",
    "head_lr",
    "head_dropout",
    "finetune_batch",
    "feature_scale",
    "normalise",
)
"""Options of features and head that mean the same to a baseline as to the product's method."""
Trained = tuple[float, Blobs]
"""A device's weight in the mean and the parts that it trained."""


class Local(Protocol):
    """A baseline's training on devices."""

    def begin(self, state: Blobs) -> Blobs:
        """The initial state with the baseline's additional parts."""

    def train(self, member: UnlabelledDevice, state: Blobs, round_: int) -> Trained | None:
        """Train one device from ``state``; None if none of its windows can train."""


@dataclass(frozen=True)
class LabelledBaseline:
    """Definition of one baseline.

    Attributes:
        name: a name of :mod:`lichen_lab.benchmarks.studies.tactfl.variants`.
        local: makes the devices' training from task, setting, options and seed; None: devices do nothing.
        options: own options with their defaults.
        whole: whether the coordinator trains encoders and head in every round, instead of only the head.
        adaptive: whether the mean update is a gradient for Adam at the coordinator.
    """

    name: str
    local: Callable[[Task, TactflSetting, Mapping[str, float], int], Local] | None = None
    options: Mapping[str, float] = field(default_factory=dict)
    whole: bool = False
    adaptive: bool = False


def run(
    baseline: LabelledBaseline, fleet: UnlabelledFleet, setting: TactflSetting, seed: int, tell: Say
) -> TactflOutcome:
    """One baseline on a fleet: :data:`lichen_lab.benchmarks.study.run_spec.Run` for each of them.

    Raises:
        Misconfigured: the baseline has no such option.
    """
    made = LabelledRun(baseline, fleet, setting, seed)
    return made.coordinator.play_rounds(tell, made.round, lambda: made.model, tuned=not baseline.whole)


@study.timed_run
def labelled_only(fleet: UnlabelledFleet, setting: TactflSetting, seed: int, tell: Say) -> TactflOutcome:
    """Train the initial network end to end on the labelled windows only.

    Raises:
        Misconfigured: there is no such option.
    """
    task = task_of(fleet, setting, seed, setting.options)
    coordinator = StudyCoordinator.of(fleet, task, setting)
    fresh = coordinator.client.initial(task, seed)
    scores = {TRAINED: coordinator.judged(coordinator.whole(setting.rounds, fresh, setting.tune_epochs))}
    tell(f"{setting.tune_epochs} passes")
    return TactflOutcome(scores, [(setting.rounds, scores[TRAINED][HERE]["f1"])])


class LabelledRun:
    """One run of one baseline."""

    def __init__(
        self, baseline: LabelledBaseline, fleet: UnlabelledFleet, setting: TactflSetting, seed: int
    ) -> None:
        for_ours, self.options = options_of(baseline, setting)
        self.baseline, self.fleet, self.setting = baseline, fleet, setting
        self.task = task_of(fleet, setting, seed, for_ours)
        self.coordinator = StudyCoordinator.of(fleet, self.task, setting)
        self._head_every = self.coordinator.config().head_every
        self.state = self.coordinator.client.initial(self.task, seed)
        self.local: Local | None = None
        if baseline.local is None:
            self._take(self.coordinator.measured(self.model))
        else:
            self.local = baseline.local(self.task, setting, self.options, seed)
            self.state = self.local.begin(self.state)
        if baseline.whole:
            self._take(self.coordinator.whole(1, self.model, int(self.options["warm_epochs"]), last=False))

    @property
    def model(self) -> Blobs:
        """The parts of the state that belong to the product's network."""
        return {name: part for name, part in model_of(self.state).items() if not name.startswith("decoder")}

    def _take(self, model: Blobs) -> None:
        self.state = {**self.state, **model}

    def round(self, round_: int) -> None:
        """Play one round of all devices and the coordinator."""
        if self.local is not None:
            start = model_of(self.state)
            members = chosen(self.fleet.members, self.setting, self.task.seed, round_)
            made = (self.local.train(member, start, round_) for member in members)
            folded = mean(start, (each for each in made if each is not None))
            if self.baseline.adaptive:
                self.state = stepped(self._aggregator(), OPTIMISED, self.state, folded)
            else:
                self.state = rejoined(folded, self.state)
        if self.baseline.whole:
            self._take(self.coordinator.whole(round_, self.model, self._epochs(round_), last=False))
        elif round_ % self._head_every == 0 or round_ == self.setting.rounds:
            self._take(self.coordinator.head(round_, self.model))

    def _aggregator(self) -> Aggregator:
        known = {name: self.options[name] for name in ("beta1", "beta2", "tau")}
        return Aggregator(kind="fedadam", lr=self.options["server_lr"], **known)

    def _epochs(self, round_: int) -> int:
        """Passes over the labelled windows after that round: ``tune_epochs`` in all, spread evenly."""
        total, rounds = self.setting.tune_epochs, self.setting.rounds
        return round_ * total // rounds - (round_ - 1) * total // rounds


def mean(state: Blobs, trained: Iterable[Trained]) -> Blobs:
    """Weighted mean of each part over the devices that trained it; other parts stay."""
    total: dict[str, dict[str, np.ndarray[Any, np.dtype[np.float64]]]] = {}
    weight: dict[str, float] = {}
    for own, parts in trained:
        for blob, tensors in parts.items():
            weight[blob] = weight.get(blob, 0.0) + own
            sums = total.setdefault(blob, {})
            for name, tensor in tensors.items():
                sums[name] = sums.get(name, np.zeros(tensor.shape)) + own * tensor.astype(np.float64)
    folded = {
        blob: {name: (x / weight[blob]).astype(np.float32) for name, x in sums.items()}
        for blob, sums in total.items()
    }
    return {**state, **folded}


def options_of(baseline: LabelledBaseline, setting: TactflSetting) -> tuple[dict[str, Any], dict[str, float]]:
    """Options of features and head that all methods share, and the baseline's own; see the study's."""
    return study.options_of(TITLES[baseline.name], setting.options, _FOR_OURS, baseline.options)
