"""What every method of the study has in common: the task, the coordinator's training, the judging.

All of them begin with the same network, as the product's method makes it, and train at the coordinator with
its code. Imports torch when it runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self, cast

import torch

from coordinator.aggregation.round_fold import finish_seed
from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.tactfl.names import OURS
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    TRAINED,
    TUNED,
    Scores,
    TactflOutcome,
    TactflSetting,
    UnlabelledFleet,
)
from lichen_lab.benchmarks.study.federation import play_rounds
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Client
from models.methods.tactfl import TactflConfig
from models.methods.tactfl.coordinator_training.finetune import head_trained, remeasured, whole_trained
from models.methods.tactfl.coordinator_training.head_training import HeadRecipe
from models.multimodal.network import build, load_blobs, to_blobs
from models.registry import method
from models.seeds import derive_seed
from protocol.tasks.task import Encoder, Network, Task

LOOK_EVERY: Final = 5
"""Rounds between two looks at the version."""


def task_of(fleet: UnlabelledFleet, setting: TactflSetting, seed: int, options: Mapping[str, Any]) -> Task:
    """The fleet's task with the study's network.

    Args:
        fleet: names, shapes and units.
        setting: of the run.
        seed: of the task.
        options: of the product's method, over what the setting gives all methods.

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


@dataclass(frozen=True)
class StudyCoordinator:
    """The labelled windows at work: the product's own training at a coordinator.

    Attributes:
        fleet: whose windows they are.
        task: names, options, and the seed of its training.
        setting: of the run.
        client: judges versions.
    """

    fleet: UnlabelledFleet
    task: Task
    setting: TactflSetting
    client: Client

    @classmethod
    def of(cls, fleet: UnlabelledFleet, task: Task, setting: TactflSetting) -> Self:
        """With the product's own halves."""
        return cls(fleet, task, setting, method(OURS).client())

    def config(self, **options: Any) -> TactflConfig:
        """The method's options, with others over them.

        Raises:
            Misconfigured: there is no such option.
        """
        task = self.task.model_copy(update={"config": {**self.task.config, **options}})
        return cast("TactflConfig", method(OURS).configure(task))

    def head(self, round_: int, state: Blobs) -> Blobs:
        """The head trained on the labelled windows, encoders as they are: so ends a round of the product."""
        recipe = HeadRecipe.of_head(self.config())
        return head_trained(self.task, self.fleet.labelled, state, recipe, self._chance(round_))[0]

    def whole(self, round_: int, state: Blobs, epochs: int, *, last: bool = True) -> Blobs:
        """Encoders and head trained together for so many passes over the labelled windows.

        After the last round, with ``tune_epochs``, it is to the bit what the product's last round ends with.
        Where it is not the ``last`` thing done, as in methods that do it in every round, the head goes on
        from where it is.
        """
        tune = {f"finetune_{name}": value for name, value in self.setting.tune.items()}
        recipe = HeadRecipe.of_whole(self.config(**tune, finetune_epochs=epochs))
        recipe = recipe if last else replace(recipe, fresh_head=False)
        return whole_trained(self.task, self.fleet.labelled, state, recipe, self._chance(round_))[0]

    def measured(self, state: Blobs) -> Blobs:
        """The same encoders with BatchNorm statistics of the labelled windows: fresh ones have none."""
        net = build(self.task)
        load_blobs(net, state)
        windows = self.fleet.labelled
        for m, name in enumerate(net.names):
            remeasured(net, name, torch.from_numpy(windows.x[name][windows.present_BM[:, m]]))
        return {**state, **to_blobs(net)}

    def _chance(self, round_: int) -> int:
        """Of the product's training after that round."""
        return derive_seed(finish_seed(self.task, round_), "finish", round_)

    def judged(self, state: Blobs) -> Scores:
        """A version's scores by test set, in %."""
        found = {}
        for name, windows in self.fleet.tests.items():
            metrics = self.client.evaluate(self.task, windows, model_of(state)).metrics
            found[name] = {"f1": 100 * metrics["macro_f1"], "accuracy": 100 * metrics["accuracy"]}
        return found

    def play_rounds(
        self, tell: Say, play: Callable[[int], None], model: Callable[[], Blobs], *, tuned: bool
    ) -> TactflOutcome:
        """All rounds of a run, what versions are worth as they come, and the last one trained further.

        Args:
            tell: told how far it is.
            play: plays the round of that number.
            model: the newest version's.
            tuned: encoders and head are trained further together at the end, where the setting says how long.
        """
        scores: dict[str, Scores] = {}
        rounds = self.setting.rounds

        def figure(round_: int) -> float | None:
            play(round_)
            if round_ % LOOK_EVERY and round_ != rounds:
                return None
            scores[TRAINED] = self.judged(model())
            return scores[TRAINED][HERE]["f1"]

        by_round = play_rounds(rounds, tell, figure)
        if self.setting.tune_epochs and tuned:
            scores[TUNED] = self.judged(self.whole(rounds, model(), self.setting.tune_epochs))
        return TactflOutcome(scores, by_round)
