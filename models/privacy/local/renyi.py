"""Rényi differential privacy of training with sampled windows and Gaussian noise. NumPy alone.

The account of devices: no agent has scipy or ``dp-accounting``. One step of DP-SGD takes each window with
probability ``rate``, clips each gradient to length 1 (in clips), sums them, and adds Gaussian noise of
``noise`` clips. What ``k`` windows together change in it is at most the mixture of ``N(j, noise^2)`` with
the binomial probabilities of ``j`` out of ``k`` against ``N(0, noise^2)`` (Ganesh 2024, theorem 3.1; for one
window Mironov, Talwar and Zhang 2019). The divergences in both directions are computed by the trapezoidal
rule, to about twelve digits.

Neighbouring data differ in whether these windows have content or are empty: an empty one has no gradient,
and its place stays, so that ``rate`` and the number of windows are the same.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.privacy.account import epsilon_of, rho_within

Curve = NDArray[np.float64]
"""A Rényi divergence by order, (A,)."""
ORDERS: Final[Curve] = np.concatenate(
    [1 + np.arange(1, 100) / 10, np.arange(11.0, 65.0), 2.0 ** np.arange(6.5, 10.5, 0.5)]
)
_NARROW: Final = 12.0
"""Standard deviations beside the outermost normal distribution: beyond, the mass is below 1e-32."""
_STEPS: Final = 4
"""Points of the grid in one standard deviation."""
_POINTS: Final = 200_000
"""Limit of a grid; orders that would need more are not used, which is sound."""
_CELLS: Final = 1 << 18
"""Values in memory at a time."""


@lru_cache(maxsize=512)
def _step(noise: float, rate: float, windows: int, orders: bytes) -> Curve:
    """See :func:`sampled_gaussian`, for one step."""
    order_A = np.frombuffer(orders)
    if rate >= 1.0:
        full_A: Curve = order_A * windows**2 / (2.0 * noise**2)
        return full_A
    room = (_POINTS * noise / _STEPS - 2 * _NARROW * noise) / (2 * windows)
    used_A = order_A <= max(room, order_A.min())
    reach = float(order_A[used_A].max()) * windows + _NARROW * noise
    x_N = np.arange(-reach, reach, noise / _STEPS)
    log_ratio_N = np.concatenate(
        [
            _log_ratio(part_N, noise, rate, windows)
            for part_N in np.array_split(x_N, _parts(len(x_N), windows))
        ]
    )
    log_base_N = -np.square(x_N / noise) / 2 - math.log(_STEPS * math.sqrt(2 * math.pi))
    curve_A = np.full(len(order_A), math.inf)
    for at in np.flatnonzero(used_A):
        order = float(order_A[at])
        there = _log_sum(log_base_N + order * log_ratio_N)
        back = _log_sum(log_base_N + (1 - order) * log_ratio_N)
        curve_A[at] = max(there, back, 0.0) / (order - 1)
    return curve_A


def _parts(points: int, windows: int) -> int:
    return max(1, math.ceil(points * (windows + 1) / _CELLS))


def _log_ratio(x_N: Curve, noise: float, rate: float, windows: int) -> Curve:
    """Log of the mixture's density over that of ``N(0, noise^2)``."""
    j_K = np.arange(windows + 1.0)
    choices_K = [math.lgamma(windows + 1) - math.lgamma(j + 1) - math.lgamma(windows - j + 1) for j in j_K]
    weight_K = np.array(choices_K) + j_K * math.log(rate) + (windows - j_K) * math.log1p(-rate)
    exponent_NK = weight_K + (2 * x_N[:, None] * j_K - j_K**2) / (2 * noise**2)
    most_N = exponent_NK.max(axis=1)
    ratio_N: Curve = most_N + np.log(np.exp(exponent_NK - most_N[:, None]).sum(axis=1))
    return ratio_N


def _log_sum(exponent_N: Curve) -> float:
    most = float(exponent_N.max())
    return most + math.log(float(np.exp(exponent_N - most).sum()))


def sampled_gaussian(
    noise: float, rate: float, steps: float, windows: int = 1, orders: Curve = ORDERS
) -> Curve:
    """The Rényi divergence of so many steps of DP-SGD, by order (A,); infinite where it is not computed.

    Args:
        noise: standard deviation of the noise of a sum, in clips; over 0.
        rate: probability that a step takes a window; over 0, at most 1.
        steps: 0 or more.
        windows: of one unit, which may all be empty at once.
        orders: over 1.
    """
    if not steps:
        return np.zeros(len(orders))
    of_all: Curve = steps * _step(noise, rate, windows, np.ascontiguousarray(orders, np.float64).tobytes())
    return of_all


def _to_epsilon(delta: float, orders: Curve = ORDERS) -> Curve:
    """What a divergence has to be given to be an epsilon, by order (Canonne, Kamath and Steinke 2020, 12)."""
    added_A: Curve = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return added_A


def epsilon_within(curve: Curve, delta: float, orders: Curve = ORDERS) -> float:
    """Epsilon of a Rényi divergence, at this delta."""
    return max(0.0, float((curve + _to_epsilon(delta, orders)).min()))


class Spending:
    """What releases cost together: Gaussian mechanisms (rho of zCDP), and steps of sampled training.

    Args:
        rho: of all Gaussian mechanisms.
        curve: of all training, by :data:`ORDERS`; None: there was none.
    """

    def __init__(self, rho: float = 0.0, curve: Curve | None = None) -> None:
        self.rho = rho
        self.curve = curve

    def __add__(self, other: "Spending") -> "Spending":
        curves = [one.curve for one in (self, other) if one.curve is not None]
        return Spending(self.rho + other.rho, sum(curves[1:], curves[0]) if curves else None)

    def epsilon(self, delta: float) -> float:
        """At this delta; infinite after a release without noise."""
        if self.curve is None or math.isinf(self.rho):
            return epsilon_of(self.rho, delta)
        return epsilon_within(self.curve + ORDERS * self.rho, delta)

    def rho_left(self, epsilon: float, delta: float) -> float:
        """The rho that may still be spent before epsilon is exceeded at this delta; 0: none."""
        if math.isinf(self.rho):
            return 0.0
        if self.curve is None:
            return max(0.0, rho_within(epsilon, delta) - self.rho)
        most = float(((epsilon - _to_epsilon(delta) - self.curve) / ORDERS).max())
        return max(0.0, most - self.rho)
