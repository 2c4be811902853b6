"""Options of training with labels that methods share, and what does not fit a task in them. Torch-free."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from models.training.training_choices import ClassWeights, Housings, housings_trouble, weights_trouble
from protocol.base import Frozen
from protocol.tasks.network import LINEAR
from protocol.tasks.task import Task

Rate = Annotated[float, Field(gt=0, le=10)]


class SupervisedConfig(Frozen):
    """Options of the task's ``config`` table for one network that every device trains with its labels."""

    modality_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """At each step a training window loses each of its modalities with this probability, never the last one,
    and ``impute`` fills it."""
    normalise: bool = True
    """Features have the length ``feature_scale``."""
    feature_scale: Rate | Annotated[float, Field(gt=10, le=1000)] = 8.0
    lr: Rate = 0.08
    """SGD's step in round 1; later ``max(lr_min, lr * lr_decay ** (round - 1))``."""
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    lr_min: Rate = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    batch: Annotated[int, Field(ge=2, le=65536)] = 128
    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    remeasure_norms: bool = True
    """After training, BatchNorm's statistics are measured again on the round's windows (a forward pass)."""
    rotate_deg: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Augmentation: each training window is rotated about a random axis by up to this angle, its streams of
    three channels together (sensors in one housing). 0 is off."""
    housings: Housings = ()
    """With ``rotate_deg``: groups of modalities in one housing, such as ``[["acc", "gyro"], ["watch_acc"]]``.
    Groups rotate independently, and modalities in none do not. Empty: one group of all."""
    gain: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Augmentation: each training window and modality is multiplied by a factor from ``1 - gain`` to ``1 +
    gain``."""
    class_weights: ClassWeights = "none"
    """Weights of windows in the loss, by class name (1 if it is not named); ``balanced``: each class of the
    round's windows weighs the same."""
    balanced_batches: bool = False
    """Batches are drawn with equal shares of the classes that the device has; windows of rare classes repeat.
    """
    max_delta: Annotated[float, Field(gt=0, le=1000)] = 100.0
    """The coordinator refuses an update in which any model value moved further."""


def misfit_of(config: SupervisedConfig, task: Task, not_linear: Mapping[str, Any] | None = None) -> str:
    """What in the options does not fit the task, in words; empty: all does.

    Args:
        config: the options.
        task: its classes, modalities and network.
        not_linear: further options that devices without torch do not compute; what is false is not asked for.
    """
    trouble = weights_trouble(task, config.class_weights) or housings_trouble(task, config.housings)
    if trouble or task.network.kind != LINEAR:
        return trouble
    if augmented := next((one.name for one in task.modalities if one.augment), ""):
        return f"network.kind: {LINEAR!r}: not with augment of modality {augmented!r}; leave it out"
    asked = {
        **(not_linear or {}),
        "modality_dropout": config.modality_dropout,
        "rotate_deg": config.rotate_deg,
        "gain": config.gain,
    }
    wrong = next((key for key, value in asked.items() if value), "")
    return f"{wrong}: {asked[wrong]!r}: not in a {LINEAR!r} network; leave it out" if wrong else ""
