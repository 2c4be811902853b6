"""Epsilon of repeated releases with Gaussian noise, for one whole device. Pure.

Without sampling, ``n`` releases are one Gaussian mechanism with ``1/sqrt(n)`` of the noise, whose epsilon is
known in closed form (Balle and Wang 2018, theorem 8). With Poisson sampling, ``dp-accounting`` composes
privacy loss distributions; its discretisation rounds up, so the epsilon is an upper bound. Noise that devices
add has an account of its own (:mod:`models.privacy.shared_noise`).
"""

import math
from functools import lru_cache
from typing import Final

from models.privacy.account import epsilon_of, rho_of
from models.privacy.shared_noise import SharedNoise
from protocol.errors import Misconfigured
from protocol.tasks.folding import Privacy

EXTRA: Final = "privacy"
_LARGE: Final = 100.0
"""Beyond this epsilon nothing is protected: the bound of zCDP is exact enough, and immediate."""
_STEPS: Final = 200
_GROWTH: Final = 1.4
_NEAR: Final = 1.1
"""Of the search for a number of releases: how it is extrapolated, and from where on it is halved."""
_HOPELESS: Final = 300.0
_LEAST_NOISE: Final = 0.1
"""Beyond these, distributions of losses are large or do not fit into memory, and the bound without sampling
says enough."""
_COARSE: Final = 1e-3
"""Interval of privacy losses in a first composition: it is quick at any epsilon."""
_FINE: Final = 1e-4
_COARSE_FROM: Final = 20.0
"""Beyond this epsilon the first one is exact enough, and a finer one takes half a minute."""


def gaussian_epsilon(noise: float, releases: int, delta: float) -> float:
    """Epsilon of ``releases`` Gaussian mechanisms whose noise is ``noise`` sensitivities each."""
    if not releases:
        return 0.0
    bound = epsilon_of(releases * rho_of(noise), delta)
    if bound > _LARGE:
        return bound
    mu = math.sqrt(releases) / noise
    low, high = 0.0, bound
    if _delta_of(mu, low) <= delta:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _delta_of(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta of a Gaussian mechanism with sensitivity ``mu`` standard deviations."""
    return _normal_cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * _normal_cdf(-mu / 2 - epsilon / mu)


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2.0)) / 2.0


@lru_cache(maxsize=256)
def poisson_epsilon(noise: float, rate: float, releases: int, delta: float) -> float:
    """The same where each device takes part in a release with probability ``rate``; add or remove one device.

    Takes a second for thousands of releases, and the first call imports scipy: not on an event loop.

    Raises:
        Misconfigured: ``dp-accounting`` is not installed.
    """
    without = gaussian_epsilon(noise, releases, delta)
    if without == 0.0 or without > _HOPELESS or noise < _LEAST_NOISE:
        return without
    try:
        from dp_accounting import (  # noqa: PLC0415 - scipy is large, and only this needs it
            GaussianDpEvent,
            PoissonSampledDpEvent,
            SelfComposedDpEvent,
        )
        from dp_accounting.pld import PLDAccountant  # noqa: PLC0415
    except ImportError:
        raise Misconfigured(
            'privacy.sampling = "poisson": its account needs the package dp-accounting: '
            f"pip install 'lichen[{EXTRA}]'"
        ) from None
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), releases)
    found = without
    for interval in (_COARSE, _FINE):
        accountant = PLDAccountant(value_discretization_interval=interval)
        accountant.compose(event)
        found = min(found, float(accountant.get_epsilon(delta)))
        if found > _COARSE_FROM:
            break
    return found


def epsilon_after(privacy: Privacy, releases: int, shared: SharedNoise | None = None) -> float:
    """Epsilon of a task after so many versions; raises as :func:`poisson_epsilon`.

    With Poisson sampling: against those who do not see who was asked. ``shared``: devices add the noise.
    """
    if shared is not None or privacy.rate is None:
        return epsilon_of_seen(privacy, releases, shared)
    return poisson_epsilon(privacy.noise_multiplier, privacy.rate, releases, privacy.delta)


def epsilon_of_seen(privacy: Privacy, releases: int, shared: SharedNoise | None = None) -> float:
    """The same against those who see which devices were asked: offers are sent to the whole fleet."""
    if shared is not None:
        return shared.epsilon(releases, privacy.delta)
    return gaussian_epsilon(privacy.noise_multiplier / privacy.sensitivity, releases, privacy.delta)


def releases_within(privacy: Privacy, wanted: int, shared: SharedNoise | None = None) -> int:
    """How many of ``wanted`` versions keep epsilon within ``max_epsilon``; ``shared``: devices add the noise.

    Raises:
        Misconfigured: as :func:`poisson_epsilon`.
    """
    most = privacy.max_epsilon
    if most is None or (beyond := epsilon_after(privacy, wanted, shared)) <= most:
        return wanted
    low, high = 0, wanted  # within the limit, and beyond it
    while high - low > 1:
        # epsilon grows like a power of the number between its root and itself: few steps, each of a second
        guess = int(high * (most / beyond) ** _GROWTH) if beyond > most * _NEAR else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        if (found := epsilon_after(privacy, middle, shared)) <= most:
            low = middle
        else:
            high, beyond = middle, found
    return low
