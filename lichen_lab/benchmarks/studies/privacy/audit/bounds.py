"""Lower bounds of epsilon from the guesses of an attacker. Pure; no SciPy.

There are m canaries, and a fair coin says of each, by itself, which of two it is: in or out, this device or
another. The attacker sees what a mechanism releases and guesses some of them. If the mechanism is
(epsilon, delta)-private for each canary, many right guesses are improbable: for r guesses, at least v right
ones have at most the probability of theorem 5.2 of Steinke, Nasr and Jagielski (2023, Privacy Auditing with
One Training Run). The largest epsilon that this rejects is a lower bound. It needs nothing of the noise, but
even of a perfect attack it is at most about ``ln(r / 3)``.

:func:`epsilon_if_normal` is closer, for a mechanism that is known to add normal noise to each canary, by
itself: then one threshold gives the ratio of signal and noise, and that gives epsilon (Nasr et al. 2023,
Tight Auditing of Differentially Private Machine Learning).
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.privacy.accountant import gaussian_epsilon

CONFIDENCE: Final = 0.95
SHARES: Final = (1 / 32, 1 / 8, 1 / 2)
"""Guessed shares of the canaries, set before any run: few and sure guesses for a weak attack, many for a
strong one. The bound is the best of them, each at a third of the error."""
_LARGEST: Final = 50.0
_STEPS: Final = 40


def epsilon_of_guesses(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """The largest epsilon that ``right`` of ``guesses`` reject with this confidence; 0: they reject none."""

    def rejects(epsilon: float) -> bool:
        return _chance(canaries, guesses, right, epsilon, delta) <= 1 - confidence

    return _largest(rejects, _LARGEST)


def bound_of(score_M: NDArray[np.float64], in_M: NDArray[np.bool_], delta: float) -> float:
    """A lower bound of epsilon from scores: the highest are guessed as in, as many of the lowest as out.

    Args:
        score_M: of each canary.
        in_M: what each is.
        delta: of the claim.
    """
    order_M, bounds = np.argsort(score_M, kind="stable"), [0.0]
    error = (1 - CONFIDENCE) / len(SHARES)
    for share in SHARES:
        half = int(len(in_M) * share / 2)
        if half:
            right = int(in_M[order_M[-half:]].sum() + (~in_M[order_M[:half]]).sum())
            bounds.append(epsilon_of_guesses(len(in_M), 2 * half, right, delta, 1 - error))
    return max(bounds)


def epsilon_if_normal(
    score_M: NDArray[np.float64], in_M: NDArray[np.bool_], threshold: float, delta: float
) -> float:
    """A lower bound of epsilon if the scores of both sorts are normal, with equal spread and independent.

    Args:
        score_M: of each canary.
        in_M: what each is; of both sorts there are some.
        threshold: above it a canary is guessed as in; chosen without the scores.
        delta: of the claim.
    """
    error, normal = (1 - CONFIDENCE) / 2, NormalDist()
    above_M = score_M > threshold
    rates = [highest_rate(int(wrong.sum()), len(wrong), error) for wrong in (above_M[~in_M], ~above_M[in_M])]
    if sum(rates) >= 1:
        return 0.0
    signal = -sum(normal.inv_cdf(rate) for rate in rates)  # in standard deviations
    return gaussian_epsilon(1 / signal, 1, delta) if signal > 0 else 0.0


def highest_rate(found: int, count: int, error: float) -> float:
    """The upper Clopper-Pearson bound of a probability of which ``found`` of ``count`` tries came true."""
    if found >= count:
        return 1.0

    def too_few(rate: float) -> bool:
        return sum(_binomial(count, rate)[: found + 1]) >= error

    return _largest(too_few, 1.0 - 1e-12)


def _largest(holds: Callable[[float], bool], high: float) -> float:
    """The largest argument up to ``high`` for which it holds; 0 if for none. It holds up to some value."""
    low = 0.0
    if not holds(low):
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The highest probability of so many right guesses under (epsilon, delta)."""
    each = _binomial(guesses, 1 / (1 + math.exp(-epsilon)))
    fewer = accumulate(reversed(each[:right]))  # P[right > X >= right - i], i = 1, 2, ..
    slope = max((total / i for i, total in enumerate(fewer, 1)), default=0.0)
    return sum(each[right:]) + 2 * canaries * delta * slope


def _binomial(count: int, rate: float) -> Sequence[float]:
    """The probabilities of 0 to ``count`` successes."""
    if not 0 < rate < 1:
        return [*(float(rate == 0) for _ in range(1)), *(0.0 for _ in range(count - 1)), float(rate == 1)]
    k_N = np.arange(count + 1)
    ways_N = np.concatenate([[0.0], np.cumsum(np.log((count - k_N[:-1]) / (k_N[:-1] + 1)))])
    each_N: NDArray[np.float64] = np.exp(ways_N + k_N * math.log(rate) + (count - k_N) * math.log1p(-rate))
    return each_N.tolist()  # type: ignore[no-any-return]
