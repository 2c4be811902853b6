"""The clip of the next round, from how many updates were within it (Andrew et al. 2021). Pure."""

import math
from collections.abc import Collection, Iterable
from typing import Final

from models.privacy.discrete_gaussian import discrete_gaussian
from models.privacy.key_stream import KeyStream, derived_key
from models.privacy.noisy_fold import FURTHEST, RoundNoise

WITHIN: Final = "within_clip"
"""The metric of an update: 1 if its norm needed no clip, else 0."""
_STEPS: Final = 1 << 10
"""Steps of a bit: then the discrete Gaussian is the continuous one, to a thousandth."""


def next_clip(noise: RoundNoise, first: float, bits: Iterable[float], digests: Collection[str]) -> float:
    """The clip of the next round.

    Args:
        noise: of this round, with its clip.
        first: the task's clip.
        bits: of the folded updates; whatever a device says counts as 0 or 1.
        digests: of these updates: with the same, the noise of the count is the same.

    Raises:
        ValueError: the table has no ``adaptive_clip`` (a bug).
    """
    privacy, adaptive = noise.privacy, noise.privacy.adaptive_clip
    if adaptive is None:
        raise ValueError("the clip is fixed")
    # b - 1/2 in half steps: one device more or less changes the sum by half a count
    total = sum(_STEPS if bit > 0 else -_STEPS for bit in bits)
    stream = KeyStream(derived_key(noise.key, ("count", *sorted(digests))))
    drawn = int(discrete_gaussian(stream, math.ceil(2 * adaptive.count_noise * _STEPS), 1)[0])
    share = (total + drawn) / (2 * _STEPS) / privacy.divisor(len(digests)) + 0.5
    clip = privacy.clip * math.exp(-adaptive.lr * (min(max(share, 0.0), 1.0) - adaptive.quantile))
    return min(max(clip, first / FURTHEST), first * FURTHEST)
