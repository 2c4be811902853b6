"""The coordinator's equations on prototypes, NumPy; and their names in the global state. Torch-free.

Equation (15), the mean over the devices that hold a class, is :class:`models.aggregation.exact_sums.RowSum`.
Shapes: K classes, D features.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, FloatArray
from models.methods.qqr import QqrConfig
from protocol.tasks.task import Task

BITS_3_LEVELS: Final = 8
CLASSES_BLOB: Final = "classes"
"""The blob of the classes that the fleet has trained on; the coordinator's, on no device's route."""
TRAINED_NAME: Final = f"{CLASSES_BLOB}/trained"
"""The tensor (K,): in how many rounds devices that train had labelled windows of the class."""

_ROUNDING: Final = 1e-9
"""A tenth of 30 windows is three, despite float64's rounding of 0.1."""


def blob_name(modality: str) -> str:
    """The blob of a modality's prototypes."""
    return f"prototypes/{modality}"


def values_name(modality: str) -> str:
    """The tensor of prototypes: (K, D) in the global state, (rows, D) in an update."""
    return f"prototypes/{modality}/values"


def rounds_name(modality: str) -> str:
    """The tensor (K,) of the rounds in which each class was seen; 0: it has no prototype yet."""
    return f"prototypes/{modality}/rounds"


def fresh_classes(task: Task) -> Blobs:
    """The blob ``classes`` of a new state: no class has been trained."""
    return {CLASSES_BLOB: {TRAINED_NAME: np.zeros(len(task.labels), np.float32)}}


def trained(state: Blobs) -> FloatArray | None:
    """``rounds_K`` of training with each class; None if the state lacks it (an older version)."""
    return state[CLASSES_BLOB][TRAINED_NAME] if CLASSES_BLOB in state else None


def left_after(count: int, trim: float) -> int:
    """A class's windows in its prototype, after a share of them, rounded down, is left out."""
    return count - math.floor(trim * count + _ROUNDING)


def table(state: Blobs, modality: str) -> tuple[FloatArray, FloatArray]:
    """``vbar_KD`` and ``rounds_K`` of a modality."""
    blob = state[blob_name(modality)]
    return blob[values_name(modality)], blob[rounds_name(modality)]


def cumulative(
    vbar_KD: FloatArray, rounds_K: FloatArray, v_KD: FloatArray, seen_K: NDArray[np.bool_], config: QqrConfig
) -> tuple[FloatArray, FloatArray]:
    """The cumulative global prototype, equation (16): ``((t - 1) vbar + v) / t``.

    t runs per class: it counts the rounds in which that class was seen. With exponential forgetting the
    newest round's share is ``max(1 / t, forgetting_rate)`` in place of ``1 / t``.

    Returns:
        The new ``vbar_KD`` and ``rounds_K``; classes not seen in this round keep theirs.
    """
    t_K = rounds_K + 1
    floor = config.forgetting_rate if config.forgetting == "exponential" else 0.0
    share_K = np.where(seen_K, np.maximum(1 / t_K, floor), 0.0).astype(np.float32)
    new_KD = vbar_KD + share_K[:, None] * (v_KD - vbar_KD)
    return new_KD.astype(np.float32), np.where(seen_K, t_K, rounds_K).astype(np.float32)
