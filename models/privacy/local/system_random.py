"""Random numbers from the operating system, which no peer can repeat: for the noise of a device. NumPy alone.

A round's seed is known to the coordinator: it could remove noise that is derived from it.
"""

import math
import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BITS: Final = 53


def system_uniform(count: int) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1], (N,)."""
    bits_N = np.frombuffer(os.urandom(8 * count), np.uint64)
    uniform_N: NDArray[np.float64] = (
        (bits_N >> np.uint64(64 - _BITS)).astype(np.float64) + 1.0
    ) * 2.0**-_BITS
    return uniform_N


def system_noise(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Standard normal numbers of a shape (Box and Muller 1958)."""
    count = math.prod(shape)
    first_N, second_N = system_uniform(2 * count).reshape(2, count)  # over 0: the logarithm stays finite
    normal_N: NDArray[np.float64] = np.sqrt(-2.0 * np.log(first_N)) * np.cos(2.0 * np.pi * second_N)
    return normal_N.reshape(shape)
