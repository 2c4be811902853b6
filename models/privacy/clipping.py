"""The norm of a whole update: devices scale it to the task's clip, the coordinator checks it. NumPy alone."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from models.aggregation.update_norms import sum_of_squares
from models.contract import FloatArray, Tensors, Update
from models.header_checks import check_weight_one
from protocol.errors import Reason, Refused
from protocol.tasks.folding import Privacy

TOLERANCE: Final = 1e-6
"""By which a norm may differ between machines, relative to the clip; the noise covers it."""


def norm_of(tensors: Mapping[str, FloatArray]) -> float:
    """The L2 norm over all values of all tensors, in float64; independent of the tensors' order."""
    return math.sqrt(math.fsum(sum_of_squares(tensor) for tensor in tensors.values()))


def within(tensors: Mapping[str, FloatArray], clip: float) -> Tensors:
    """The tensors, all scaled by one factor if their norm exceeds ``clip``; float32."""
    norm = norm_of(tensors)
    if norm <= clip:
        return dict(tensors)
    factor = clip / norm
    return {name: np.multiply(tensor, factor, dtype=np.float32) for name, tensor in tensors.items()}


def check_clipped(privacy: Privacy | None, update: Update) -> None:
    """Check that a decoded update is one that the noise covers; every update, without the table.

    Raises:
        Refused: its weight is not 1, or its norm exceeds the clip.
    """
    if privacy is None:
        return
    check_weight_one(update.header, "with [privacy] every device weighs")
    norm = norm_of(update.tensors)
    if not norm <= privacy.clip * (1 + TOLERANCE):
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"the update has the norm {norm:.6g}; privacy.clip is {privacy.clip:g}, to which the device "
            "must scale it",
        )
