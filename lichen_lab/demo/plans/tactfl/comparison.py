"""Side job: models from the coordinator's labelled windows, without a fleet.

It runs beside the fleet because it trains. The training is the coordinator's own, on the same windows; the
encoders are those of an initial model instead of the fleet's.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lichen_lab.demo.core.side_jobs import main
from lichen_lab.demo.plans.tactfl.results import LABELLED, RANDOM
from models.data import window_set
from models.methods.tactfl import TactflConfig
from models.registry import method
from protocol.tasks.task import Task

PATIENCE: Final = 2
"""Training from random encoders takes longer than from the fleet's: it gets this many times the epochs of
fine-tuning."""


def configs(task: Task) -> dict[str, dict[str, Any]]:
    """Rival -> the task's options: train the head alone, or everything."""
    epochs = TactflConfig.model_validate(task.config).finetune_epochs
    return {
        RANDOM: {**task.config, "finetune_epochs": 0},
        LABELLED: {**task.config, "finetune_epochs": PATIENCE * epochs},
    }


def results(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each rival over the seeds: ``name``, ``seed``, ``accuracy`` on the unseen people."""
    task = Task.model_validate(job["task"])
    spec = method(task.method)
    client, trainer = spec.client(), spec.trainer()
    labelled = window_set.load(Path(job["labelled"]), task)
    test = window_set.load(Path(job["unseen"]), task)
    for seed in job["seeds"]:
        initial = client.initial(task, seed)
        for name, config in configs(task).items():
            chosen = task.model_copy(update={"config": config})
            state, _ = trainer.finish(chosen, task.rounds.count, seed, labelled, initial)
            judged = client.evaluate(chosen, test, state)
            yield {"name": name, "seed": seed, "accuracy": judged.metrics["accuracy"]}


if __name__ == "__main__":
    main(results)
