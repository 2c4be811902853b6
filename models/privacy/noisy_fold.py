"""Noise in a round's fold: discrete Gaussian integers, added to the exact sums. NumPy alone.

The noise follows from a secret and from the updates that are folded. A fold that is repeated after a crash
gives the same version; one with other updates has other noise, so that two results say nothing by their
difference.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from models.aggregation.exact_sums import FRACTION_BITS, FixedPointSum
from models.contract import Blobs, Fold
from models.privacy.clipping import TOLERANCE
from models.privacy.discrete_gaussian import MAX_SIGMA, discrete_gaussian
from models.privacy.key_stream import KeyStream, derived_key
from models.privacy.shared_noise import SharedNoise
from models.tensors import NEVER_NEGATIVE
from protocol.tasks.folding import Privacy

FURTHEST: Final = 1000.0
"""A clip that adapts stays within this factor of the task's."""
LEAST: Final = 0.5
"""Of a running variance, in one round."""
MIN_SIGMA: Final = 1 << 10
"""Steps: above, the discrete Gaussian is accounted as the continuous one, to a thousandth."""


@dataclass(frozen=True)
class RoundNoise:
    """The noise of one round.

    Attributes:
        privacy: how much.
        key: of this round and base alone, 32 bytes; secret.
        shared: in a simulation of devices that add the noise: the shares, which are drawn as their sum.
    """

    privacy: Privacy
    key: bytes = field(repr=False)
    shared: SharedNoise | None = None

    def add(self, fold: Fold, digests: Collection[str]) -> None:
        """Add noise to each value of each tensor of a fold, and let it be divided by the fixed divisor.

        Args:
            fold: with all its updates.
            digests: of the updates.

        Raises:
            TypeError: the fold has parts that are no sums of clipped values; its method must not have a table
                ``[privacy]``.
        """
        sums = [part for _, part in sorted(fold.parts().items()) if isinstance(part, FixedPointSum)]
        if len(sums) != len(fold.parts()):
            raise TypeError("[privacy]: the fold has parts that are no sums, which noise does not cover")
        sigma, shift = sigma_of(self.privacy, sum(one.size for one in sums)), 0
        if self.shared is not None:
            sigma = math.ceil(math.sqrt(max(1, len(digests))) * self.shared.sigma)
            shift = FRACTION_BITS - self.shared.fraction_bits
        about = ("fold", str(sigma), *sorted(digests))
        stream = KeyStream(derived_key(self.key, about))
        for one in sums:
            one.add_noise(
                lambda count: discrete_gaussian(stream, sigma, count) << shift,
                self.privacy.divisor(len(digests)),
            )


def steadied(before: Blobs, after: Blobs) -> Blobs:
    """A version whose running variances are at least :data:`LEAST` of those before.

    Noise may take them to zero, and normalised features to any length. This reads only what is published, so
    it costs no epsilon.
    """
    made = dict(after)
    for blob, tensors in after.items():
        if found := [name for name in tensors if name.endswith(NEVER_NEGATIVE) and name in before[blob]]:
            floors = {name: before[blob][name] * np.float32(LEAST) for name in found}
            made[blob] = {**tensors, **{name: np.maximum(tensors[name], floors[name]) for name in found}}
    return made


def sigma_of(privacy: Privacy, values: int) -> int:
    """The noise of each total, in steps.

    ``sum_multiplier`` times the norm of a device's integers: the clip, what machines may differ by, and at
    most half a step of rounding in each of its values.
    """
    norm = privacy.clip * (1 + TOLERANCE) * 2**FRACTION_BITS + math.sqrt(values) / 2
    return math.ceil(privacy.sum_multiplier * norm)


def sigma_trouble(privacy: Privacy) -> str:
    """Why noise cannot be drawn with this table, in words; empty: it can."""
    scale = privacy.sum_multiplier * privacy.clip
    room = FURTHEST if privacy.adaptive_clip else 1.0
    low = room * MIN_SIGMA / 2**FRACTION_BITS
    high = MAX_SIGMA / 2 ** (FRACTION_BITS + 1) / room
    if low <= scale <= high:
        return ""
    return f"clip times noise_multiplier is {scale:g}; it must be from {low:.3g} to {high:g}"
