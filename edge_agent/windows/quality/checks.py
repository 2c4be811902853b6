"""Checks of the quality indicator that need one window alone. Pure functions, NumPy.

Each takes windows ``x_BCT`` with their coverage ``covered_BT`` and returns a penalty from 0 to 1 per window;
:mod:`edge_agent.windows.quality.meter` explains them.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Values = NDArray[np.float32]

FOUND: Final = 0.55
"""The penalty from which a check reports its fault."""
MIN_POINTS: Final = 16
"""Windows with fewer grid points are not judged by their shape."""
_MIN_LEVELS: Final = 16
_MAX_LEVELS: Final = 1024


def found(share_B: Floats, limit: float) -> Floats:
    """Penalty 0 below the limit, rising from FOUND at the limit to 1 at a share of 1."""
    rest = max(1e-9, 1.0 - limit)
    return np.where((share_B >= limit) & (share_B > 0), FOUND + (1 - FOUND) * (share_B - limit) / rest, 0.0)


def gaps(covered_BT: Bools, bad: float) -> Floats:
    """Grows with the share that is not covered; reported from a share of ``bad``."""
    gap_B: Floats = 1.0 - np.asarray(covered_BT.mean(axis=1), np.float64)
    return np.asarray(np.minimum(1.0, gap_B / bad * FOUND), np.float64)


def stuck(x_BCT: Values, covered_BT: Bools, share: float, channel_share: float) -> Floats:
    """The longest run of equal neighbours, in all channels at once or in one."""
    points = x_BCT.shape[2]
    if points < MIN_POINTS:
        return np.zeros(len(x_BCT))
    both = covered_BT[:, 1:] & covered_BT[:, :-1]
    equal_BCT = (x_BCT[:, :, 1:] == x_BCT[:, :, :-1]) & both[:, None]
    all_B = longest_run(equal_BCT.all(axis=1)) / (points - 1)
    # A run cannot be longer than the number of equal neighbours; mostly that is too few to search for runs.
    enough_B = equal_BCT.sum(axis=2).max(axis=1) >= channel_share * (points - 1)
    channel_B = np.zeros(len(x_BCT))
    for b in np.flatnonzero(enough_B):
        channel_B[b] = longest_run(equal_BCT[b]).max() / (points - 1)
    return np.maximum(found(all_B, share), found(channel_B, channel_share))


def clipped(x_BCT: Values, covered_BT: Bools, share: float) -> Floats:
    """A flat top: the share of a moving channel's points at its maximum or minimum beside another one."""
    if x_BCT.shape[2] < MIN_POINTS:
        return np.zeros(len(x_BCT))
    high, low = x_BCT.max(axis=2, keepdims=True), x_BCT.min(axis=2, keepdims=True)
    span_BC = (high - low)[:, :, 0]
    step_BCT = np.abs(np.diff(x_BCT, axis=2))
    # Interpolation onto the grid rounds: a step far below the range is not a step of the sensor.
    true_BCT = step_BCT > span_BC[:, :, None] / _MAX_LEVELS
    smallest_BC = np.min(step_BCT, axis=2, where=true_BCT, initial=np.inf)
    moving_BC = span_BC >= _MIN_LEVELS * smallest_BC
    share_BC = np.zeros(span_BC.shape)
    for rail in (high, low):
        at_BCT = (x_BCT == rail) & covered_BT[:, None]
        pair_BCT = at_BCT[:, :, 1:] & at_BCT[:, :, :-1]
        beside_BCT = np.zeros_like(at_BCT)
        beside_BCT[:, :, 1:] = pair_BCT
        beside_BCT[:, :, :-1] |= pair_BCT
        share_BC += beside_BCT.mean(axis=2)
    return found(np.where(moving_BC, share_BC, 0.0).max(axis=1), share)


def out_of_range(
    x_BCT: Values, covered_BT: Bools, low: float | None, high: float | None, share: float
) -> Floats:
    """The share of covered points with a value outside the sensor's range."""
    if low is None and high is None:
        return np.zeros(len(x_BCT))
    outside_BCT = np.zeros(x_BCT.shape, np.bool_)
    if low is not None:
        outside_BCT |= x_BCT < low
    if high is not None:
        outside_BCT |= x_BCT > high
    return found((outside_BCT.any(axis=1) & covered_BT).mean(axis=1), share)


def longest_run(true_BT: Bools) -> NDArray[np.int64]:
    """Length of the longest run of True in each row: (B,)."""
    count = np.cumsum(true_BT, axis=1)
    restart = np.maximum.accumulate(np.where(true_BT, 0, count), axis=1)
    return np.asarray((count - restart).max(axis=1, initial=0), np.int64)
