"""Recipes of the coordinator's training on its labelled windows, and the choice of these. Imports torch."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from models.contract import WindowSet
from models.data.window_set import select
from models.methods.tactfl import TactflConfig
from models.multimodal.prototypes import normalise
from models.training.training_choices import Housings
from protocol.errors import Misconfigured
from protocol.tasks.task import Task


@dataclass(frozen=True)
class HeadRecipe:
    """How to train on labelled windows: Adam, whose step falls to zero along half a cosine.

    Attributes:
        epochs: passes over the windows, shuffled again each time; 0 trains nothing.
        lr: the first step.
        batch: windows a step, at most.
        dropout: the probability with which a window loses each of its modalities for a step, never the last.
        rotate_deg: augmentation, see :func:`models.training.local.augmented`; it changes no frozen feature.
        gain: likewise.
        weight_decay: pull towards zero, times the step.
        feature_scale: the length of features for the head.
        normalise: whether features are scaled to it.
        housings: groups of modalities that rotate together; empty: all.
        fresh_head: the head begins from fresh values, not from the state's; not for a head alone.
    """

    epochs: int
    lr: float
    batch: int = 64
    dropout: float = 0.0
    rotate_deg: float = 0.0
    gain: float = 0.0
    weight_decay: float = 0.0
    feature_scale: float = 8.0
    normalise: bool = True
    fresh_head: bool = False
    housings: Housings = ()

    @classmethod
    def of_head(cls, config: TactflConfig) -> Self:
        """Of the head on frozen encoders (``head_...``)."""
        return cls(
            epochs=config.head_epochs,
            lr=config.head_lr,
            batch=config.head_batch,
            dropout=config.head_dropout,
            feature_scale=config.feature_scale,
            normalise=config.normalise,
        )

    @classmethod
    def of_whole(cls, config: TactflConfig) -> Self:
        """Of encoders and head together (``finetune_...``)."""
        return cls(
            epochs=config.finetune_epochs,
            lr=config.finetune_lr,
            batch=config.finetune_batch,
            dropout=config.finetune_dropout,
            rotate_deg=config.finetune_rotate_deg,
            gain=config.finetune_gain,
            weight_decay=config.finetune_weight_decay,
            feature_scale=config.feature_scale,
            normalise=config.normalise,
            fresh_head=config.finetune_head == "fresh",
            housings=config.housings,
        )

    def scaled(self, z: Tensor) -> Tensor:
        """A feature as the head gets it."""
        return normalise(z, self.feature_scale) if self.normalise else z


def usable(task: Task, windows: WindowSet) -> WindowSet:
    """The windows that have a label and a modality.

    Raises:
        Misconfigured: there is none.
    """
    use_B = (windows.y_B >= 0) & windows.present_BM.any(axis=1)
    if use_B.all() and len(windows):
        return windows
    if not use_B.any():
        raise Misconfigured(
            f"task {task.name!r}: none of the {len(windows)} windows of labelled.file has both a label and a "
            "modality: nothing to train on"
        )
    return select(windows, use_B)
