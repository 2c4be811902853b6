"""How well scores separate members from others. Pure."""

import numpy as np
from numpy.typing import NDArray

FALSE_RATE = 0.01


def figures(members_N: NDArray[np.float64], others_N: NDArray[np.float64]) -> dict[str, float]:
    """``auc``, and ``tpr`` at a false positive rate of 1 %, both in %.

    Args:
        members_N: scores of members, higher where the attacker thinks so.
        others_N: of others.
    """
    return {"auc": 100 * auc(members_N, others_N), "tpr": 100 * hits(members_N, others_N, FALSE_RATE)}


def auc(members_N: NDArray[np.float64], others_N: NDArray[np.float64]) -> float:
    """The probability that a member's score is above another's; equal scores count half."""
    sorted_N = np.sort(others_N)
    below_N = np.searchsorted(sorted_N, members_N, "left") + np.searchsorted(sorted_N, members_N, "right")
    return float(below_N.mean() / 2 / len(others_N))


def hits(members_N: NDArray[np.float64], others_N: NDArray[np.float64], false_rate: float) -> float:
    """Share of members above the lowest threshold that at most ``false_rate`` of the others exceed."""
    allowed = int(false_rate * len(others_N))
    threshold = np.sort(others_N)[::-1][allowed]
    return float((members_N > threshold).mean())
