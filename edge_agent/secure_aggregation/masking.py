"""A device's vector with the noise and the masks of a plan. NumPy; tenths of a second for a large model."""

from typing import Final

import numpy as np

from edge_agent.secure_aggregation.events import MaskUpdate
from models.privacy.discrete_gaussian import discrete_gaussian
from models.privacy.key_stream import KeyStream
from protocol.secure_aggregation.masks import add_mask
from protocol.secure_aggregation.ring import Words, packed

_BLOCK: Final = 1 << 16


def masked_vector(vector_N: Words, plan: MaskUpdate, ring_bits: int) -> bytes:
    """The packed vector with noise and all masks; the argument stays as it is.

    Args:
        vector_N: of the device's own update.
        plan: the keys of noise and masks.
        ring_bits: of the task.
    """
    total_N = vector_N.copy()
    if plan.noise is not None:
        total_N += noise_of(plan.noise, vector_N)
    add_mask(total_N, plan.own)
    for key in plan.added:
        add_mask(total_N, key)
    for key in plan.subtracted:
        add_mask(total_N, key, minus=True)
    return packed(total_N, ring_bits)


def noise_of(noise: tuple[bytes, int], vector_N: Words) -> Words:
    """A device's share of the noise, as elements of the ring; the same key gives the same noise.

    Args:
        noise: the key of 32 bytes, and the parameter of the discrete Gaussian in steps of the ring.
        vector_N: to which it is added.
    """
    (key, sigma), drawn_N = noise, np.empty_like(vector_N)
    stream = KeyStream(key)
    for start in range(0, drawn_N.size, _BLOCK):  # the numbers of a block are wider than the ring's
        part = drawn_N[start : start + _BLOCK]
        part[:] = discrete_gaussian(stream, sigma, part.size).astype(part.dtype)
    return drawn_N
