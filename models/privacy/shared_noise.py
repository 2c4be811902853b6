"""Noise of which each device of a secure round adds a share: the distributed discrete Gaussian. Pure.

Kairouz, Liu and Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation". Each device adds discrete Gaussian noise to its clipped whole numbers before it masks them, so
nobody sees a number without noise. The shares are so large that those of the smallest sum that is ever opened
make ``noise_multiplier`` clips.

A sum of discrete Gaussians is no discrete Gaussian. The account is that of their theorem 1: with shares of
parameter ``sigma`` of ``n`` honest devices, the sum of vectors of ``d`` numbers that differ by a length of
``D`` satisfies concentrated differential privacy with ``rho = (D / (sqrt(n) sigma) + tau sqrt(d))^2 / 2``,
where ``tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 sigma^2 k / (k + 1))``. What happens to a sum afterwards, also
that it is taken modulo the ring, changes nothing of that.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

from models.aggregation.exact_sums import FRACTION_BITS, HEADROOM_BITS
from models.privacy.clipping import TOLERANCE
from models.privacy.discrete_gaussian import MAX_SIGMA
from protocol.secure_aggregation.ring import top_of
from protocol.tasks.folding import Privacy, SecureAggregation
from protocol.tasks.task import Task

MIN_SIGMA: Final = 4
"""Steps of the ring: below, the difference between a sum of discrete Gaussians and one of them counts."""
TAIL: Final = 12.0
"""Standard deviations that the noise of a sum may have in the ring. The sum is sub-Gaussian, so one number of
it is beyond with a probability of ``2 exp(-72)``, and any of 2^32 numbers of a version with one of 10^21."""
MOST_VALUES: Final = 1 << 32
"""Numbers of a model, at most, in the account."""
_MOST_DEVICES: Final = 1 << 20
_REPLACED: Final = 2
"""Clips by which a sum moves if a device is replaced by another."""
_STEPS: Final = 100


@dataclass(frozen=True)
class SharedNoise:
    """The shares of one task.

    Attributes:
        norm: the largest length of a device's vector of whole numbers, in steps of the ring.
        sigma: the parameter of a device's noise in each number, in steps; its standard deviation.
        devices: in the smallest sum that is opened (``secure_aggregation.min_devices``).
        level: the largest magnitude of a device's number without noise, in steps.
        ring_bits: of the ring.
        fraction_bits: a step is ``2 ** -fraction_bits``.
    """

    norm: float
    sigma: int
    devices: int
    level: int
    ring_bits: int
    fraction_bits: int

    @classmethod
    def of(cls, privacy: Privacy, options: SecureAggregation) -> Self:
        """The shares of a task with both tables."""
        norm = privacy.clip * (1 + TOLERANCE) * 2**options.fraction_bits
        return cls(
            norm=norm,
            sigma=math.ceil(privacy.noise_multiplier * norm / math.sqrt(options.min_devices)),
            devices=options.min_devices,
            level=min(options.level, math.ceil(norm)),
            ring_bits=options.ring_bits,
            fraction_bits=options.fraction_bits,
        )

    def rho(self, honest: int) -> float:
        """The cost of one sum, in concentrated differential privacy, with so many honest devices in it."""
        length = _REPLACED * self.norm / (math.sqrt(honest) * self.sigma)
        return (length + _tau(self.sigma) * math.sqrt(MOST_VALUES)) ** 2 / 2

    def epsilon(self, releases: int, delta: float, honest: int | None = None) -> float:
        """Epsilon of so many sums; ``honest``: devices in each that add their noise and tell nobody of it.

        None: ``devices``.
        """
        return zcdp_epsilon(releases * self.rho(honest or self.devices), delta)

    @property
    def half(self) -> int:
        """Half of the devices of the smallest sum."""
        return self.devices // 2

    def reach(self, devices: int) -> int:
        """The largest magnitude of a number in a sum over so many devices, with noise, in steps."""
        return devices * self.level + math.ceil(TAIL * math.sqrt(devices) * self.sigma)

    @property
    def _top(self) -> int:
        """The largest magnitude that ring and fold hold, in steps."""
        return min(top_of(self.ring_bits), 1 << (HEADROOM_BITS - FRACTION_BITS + self.fraction_bits))

    @property
    def capacity(self) -> int:
        """How many devices' numbers, with noise, can be added without leaving the ring."""
        low, high, top = 0, _MOST_DEVICES + 1, self._top
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.reach(middle) <= top else (low, middle)
        return low

    def room_trouble(self, devices: int) -> str:
        """Why so many devices do not fit the ring, in words; empty if they do."""
        if self.reach(devices) <= self._top:
            return ""
        return (
            f"a sum over {devices} devices with their noise can wrap around in ring_bits = {self.ring_bits}: "
            f"with a clip of {self.norm:.4g} steps and shares of noise of {self.sigma} steps there is room "
            f"for {self.capacity} (then once in 10^21 versions at most); raise ring_bits, or lower "
            "fraction_bits"
        )

    @property
    def trouble(self) -> str:
        """Why a share cannot be drawn, in words; empty: it can."""
        if MIN_SIGMA <= self.sigma <= MAX_SIGMA:
            return ""
        return (
            f"a device's share of the noise is {self.sigma} steps; it must be from {MIN_SIGMA} to "
            f"{MAX_SIGMA}: {'raise' if self.sigma < MIN_SIGMA else 'lower'} "
            "secure_aggregation.fraction_bits, or change clip or noise_multiplier"
        )


def shared_noise(task: Task) -> SharedNoise | None:
    """The shares of a task whose devices add the noise; None: they add none."""
    if task.privacy is None or task.secure_aggregation is None:
        return None
    return SharedNoise.of(task.privacy, task.secure_aggregation)


def _tau(sigma: int) -> float:
    """The bound of theorem 1 for any number of devices: each term is ``exp(-pi^2 sigma^2)`` at most."""
    return 10.0 * _MOST_DEVICES * math.exp(-((math.pi * sigma) ** 2))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """rho-zCDP as (epsilon, delta) (Canonne, Kamath and Steinke 2020, proposition 12).

    Of each order the result is a bound; the smallest of those that were tried is returned.
    """
    if rho <= 0.0:
        return 0.0

    def bound(order: float) -> float:
        rest = math.log(1 / delta) + (order - 1) * math.log1p(-1 / order) - math.log(order)
        return order * rho + rest / (order - 1)

    # the bound falls, and then grows; its minimum is near 1 + sqrt(log(1 / delta) / rho)
    near = math.sqrt(math.log(1 / delta) / rho)
    low, high = math.log(near) - 4.0, math.log(near) + 4.0
    for _ in range(_STEPS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if bound(1 + math.exp(left)) < bound(1 + math.exp(right)):
            high = right
        else:
            low = left
    return max(0.0, bound(1 + math.exp((low + high) / 2)))
