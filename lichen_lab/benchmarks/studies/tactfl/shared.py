"""The task, the coordinator's training and the evaluation that all methods of the study share.

All methods start with the network of the product's method and use its training at the coordinator. Imports
torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar, cast

import numpy as np
import torch

from coordinator.aggregation.round_fold import finish_seed
from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    TRAINED,
    TUNED,
    Scores,
    TactflOutcome,
    TactflSetting,
    UnlabelledFleet,
)
from lichen_lab.benchmarks.studies.tactfl.variants import METHOD
from lichen_lab.benchmarks.study.federation import play_rounds
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Client
from models.methods.tactfl import TactflConfig
from models.methods.tactfl.coordinator_training.finetune import head_trained, remeasured, whole_trained
from models.methods.tactfl.coordinator_training.head_training import HeadRecipe
from models.multimodal.network import build, load_blobs, to_blobs
from models.registry import method
from models.seeds import derive_seed
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Task

M = TypeVar("M")
LOOK_EVERY: Final = 5
"""Rounds between two evaluations, where the setting names none."""
_CHOSEN: Final = 15


def task_of(fleet: UnlabelledFleet, setting: TactflSetting, seed: int, options: Mapping[str, Any]) -> Task:
    """The fleet's task with the study's network.

    Args:
        fleet: names, shapes and units.
        setting: of the run.
        seed: of the task.
        options: of the product's method; they override those that the setting gives all methods.

    Raises:
        ValidationError: an option of the network or of the aggregator does not fit.
    """
    given = dict(options)
    codec = given.pop("uplink", "int8")
    config = {
        "lr": setting.lr,
        "batch": setting.batch,
        "epochs": setting.epochs,
        "head_batch": setting.batch,
        "finetune_batch": setting.batch,
        **given,
    }
    encoder = Encoder.model_validate(
        {"kind": setting.encoder, "width": setting.width, "depth": setting.depth}
    )
    network = Network(
        encoders=dict.fromkeys(fleet.task.modality_names, encoder),
        feature_dim=setting.feature_dim,
        hidden_dim=setting.hidden_dim,
    )
    changed = {
        "network": network.model_dump(),
        "rounds": fleet.task.rounds.model_dump() | {"count": setting.rounds},
        "uplink": {"codec": codec, "error_carry": codec != "float32"},
        "aggregator": dict(setting.aggregator),
        "config": config,
        "seed": seed,
    }
    return Task.model_validate(fleet.task.model_dump() | changed)


def chosen(members: Sequence[M], setting: TactflSetting, seed: int, round_: int) -> list[M]:
    """The devices that train in a round, in the fleet's order; the same for every method of a seed."""
    count = len(members) if setting.chosen is None else min(setting.chosen, len(members))
    places = np.random.default_rng([seed, _CHOSEN, round_]).permutation(len(members))[:count]
    return [members[at] for at in sorted(places.tolist())]


@dataclass(frozen=True)
class StudyCoordinator:
    """Trains on the labelled windows with the product's code, as a coordinator does.

    Attributes:
        fleet: with the labelled windows and test sets.
        task: names, options, and the seed of the training.
        setting: of the run.
        client: evaluates versions.
    """

    fleet: UnlabelledFleet
    task: Task
    setting: TactflSetting
    client: Client

    @classmethod
    def of(cls, fleet: UnlabelledFleet, task: Task, setting: TactflSetting) -> Self:
        """A coordinator with the product's client."""
        return cls(fleet, task, setting, method(METHOD).client())

    def config(self, **options: Any) -> TactflConfig:
        """The method's options, some of them overridden.

        Raises:
            Misconfigured: there is no such option.
        """
        task = self.task.model_copy(update={"config": {**self.task.config, **options}})
        return cast("TactflConfig", method(METHOD).configure(task))

    def head(self, round_: int, state: Blobs) -> Blobs:
        """Train the head on the labelled windows with fixed encoders, as the product does each round."""
        recipe = HeadRecipe.of_head(self.config())
        return head_trained(self.task, self.fleet.labelled, state, recipe, self._chance(round_))[0]

    def whole(self, round_: int, state: Blobs, epochs: int, *, last: bool = True) -> Blobs:
        """Train encoders and head together for ``epochs`` passes over the labelled windows.

        After the last round, with ``tune_epochs``, the result equals the product's last round to the bit.
        Methods that do this in every round pass ``last=False``: the head then continues from its values.
        """
        tune = {f"finetune_{name}": value for name, value in self.setting.tune.items()}
        recipe = HeadRecipe.of_whole(self.config(**tune, finetune_epochs=epochs))
        recipe = recipe if last else replace(recipe, fresh_head=False)
        return whole_trained(self.task, self.fleet.labelled, state, recipe, self._chance(round_))[0]

    def measured(self, state: Blobs) -> Blobs:
        """Measure BatchNorm statistics of fresh encoders on the labelled windows."""
        net = build(self.task)
        load_blobs(net, state)
        windows = self.fleet.labelled
        for m, name in enumerate(net.names):
            remeasured(net, name, torch.from_numpy(windows.x[name][windows.present_BM[:, m]]))
        return {**state, **to_blobs(net)}

    def _chance(self, round_: int) -> int:
        """Seed of the product's training after that round."""
        return derive_seed(finish_seed(self.task, round_), "finish", round_)

    def judged(self, state: Blobs, *tests: str) -> Scores:
        """Evaluate a version: scores by test set, in %; without names, on all of the fleet's."""
        scores = {}
        for name in tests or self.fleet.tests:
            windows = self.fleet.tests[name]
            metrics = self.client.evaluate(self.task, windows, model_of(state)).metrics
            scores[name] = {"f1": 100 * metrics["macro_f1"], "accuracy": 100 * metrics["accuracy"]}
        return scores

    def play_rounds(
        self, tell: Say, play: Callable[[int], None], model: Callable[[], Blobs], *, tuned: bool
    ) -> TactflOutcome:
        """Play all rounds, evaluate versions, and fine-tune the last one.

        Args:
            tell: takes the progress.
            play: plays one round.
            model: returns the newest version.
            tuned: whether to train encoders and head together at the end, for the setting's passes.
        """
        scores: dict[str, Scores] = {}
        rounds = self.setting.rounds

        def figure(round_: int) -> float | None:
            play(round_)
            if round_ == rounds:
                scores[TRAINED] = self.judged(model())
                return scores[TRAINED][HERE]["f1"]
            looks = self.setting.looks
            if round_ not in looks if looks else round_ % LOOK_EVERY:
                return None
            return self.judged(model(), HERE)[HERE]["f1"]

        by_round = play_rounds(rounds, tell, figure)
        if self.setting.tune_epochs and tuned:
            scores[TUNED] = self.judged(self.whole(rounds, model(), self.setting.tune_epochs))
        return TactflOutcome(scores, by_round)
