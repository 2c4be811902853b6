"""Checks of the quality indicator for sound. Pure functions, NumPy.

Shapes: B windows, C channels, T samples.
"""

from typing import Final

import numpy as np

from edge_agent.windows.quality.checks import FOUND, Bools, Floats, Values, found
from protocol.tasks.task import Modality

FULL_SCALE: Final = 1.0
"""The largest value of sound, if the task has no ``low`` and ``high``."""


def full_scale(modality: Modality) -> float:
    """The largest magnitude that the sensor gives."""
    bounds = [abs(bound) for bound in (modality.low, modality.high) if bound is not None]
    return max(bounds, default=FULL_SCALE) or FULL_SCALE


def silent(x_BCT: Values, limit: float) -> Floats:
    """The standard deviation of every channel is under ``limit``, in the unit of the sound."""
    loud_B = x_BCT.std(axis=2, dtype=np.float64).max(axis=1)
    share_B = loud_B / limit if limit > 0 else np.ones_like(loud_B)
    return np.where(share_B < 1, 1.0 - (1.0 - FOUND) * share_B, 0.0)


def dropouts(x_BCT: Values, covered_BT: Bools, points: int, share: float) -> Floats:
    """The share of points in stretches of at least ``points`` equal samples, in all channels at once.

    Sound of a microphone hardly repeats a sample; a buffer that ran empty does.
    """
    if x_BCT.shape[2] <= points:
        return np.zeros(len(x_BCT))
    equal_BT = (x_BCT[:, :, 1:] == x_BCT[:, :, :-1]).all(axis=1) & covered_BT[:, 1:] & covered_BT[:, :-1]
    lost_B = np.zeros(len(x_BCT))
    for b in np.flatnonzero(equal_BT.sum(axis=1) >= points - 1):
        edges = np.diff(np.concatenate([[0], equal_BT[b].view(np.int8), [0]]))
        lengths = np.flatnonzero(edges < 0) - np.flatnonzero(edges > 0) + 1
        lost_B[b] = lengths[lengths >= points].sum() / x_BCT.shape[2]
    return found(lost_B, share)
