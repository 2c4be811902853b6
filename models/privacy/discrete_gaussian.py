"""Exact samples of the discrete Gaussian, many at a time (Canonne, Kamath and Steinke 2020, algorithms 1-3).

The probability of an integer ``x`` is proportional to ``exp(-x^2 / (2 sigma^2))``. Samples of floating-point
generators have holes that tell of the value to which they are added (Mironov 2012); these have exactly the
probabilities of the proof, and the same key gives the same samples on every machine.

A Bernoulli variable with probability ``exp(-r)`` compares a uniform number, bit by bit as far as needed,
with that probability. The first 53 bits are compared in floating point, for all samples at once; where they
lie within a margin that is wider than any rounding error, further bits and decimals decide (one comparison
of 500 million).
"""

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.privacy.key_stream import KeyStream

MAX_SIGMA: Final = 1 << 40
"""Samples of 40 sigma, which no stream gives, fit into float64 without rounding up to here."""
_BITS: Final = 53
_MARGIN: Final = 2.0**-30
"""Bound of the rounding errors of a probability in float64, which are below 2**-36: a distance of at most 64
sigma, to 2**-46 sigma, gives an exponent to 2**-39, and ``exp`` is right to a few of its last bits."""
_BATCH: Final = 1 << 16
_MORE_BITS: Final = 64
_DIGITS: Final = 40
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Exponent = Callable[[int], Fraction]
"""Of an index: the exact ``r`` of a probability ``exp(-r)``."""


def discrete_gaussian(stream: KeyStream, sigma: int, count: int) -> IntArray:
    """``count`` independent samples, (N,).

    Args:
        stream: of random bits.
        sigma: the parameter, in steps; for 10 or more it is the standard deviation.
        count: of samples.

    Raises:
        ValueError: sigma is not a whole number from 1 to ``MAX_SIGMA``.
    """
    if not 1 <= sigma <= MAX_SIGMA:
        raise ValueError(f"sigma is {sigma}; a whole number from 1 to {MAX_SIGMA} is wanted")
    parts, found = [np.zeros(0, np.int64)], 0
    while found < count:
        part = _candidates(stream, sigma, min(_BATCH, 2 * (count - found) + 16))
        parts.append(part)
        found += part.size
    return np.concatenate(parts)[:count]


def _candidates(stream: KeyStream, sigma: int, count: int) -> IntArray:
    """Samples from ``count`` tries: those of discrete Laplace that are accepted (algorithm 3)."""
    log_scale = max(0, (sigma - 1).bit_length())  # a power of two: a uniform number below it is a few bits
    scale = 1 << log_scale
    y_N = _laplace(stream, log_scale, count)
    near = np.abs(y_N).astype(np.float64) - sigma * sigma / scale
    probability_N = np.exp(-(near * near) / (2.0 * sigma * sigma))

    def exponent(index: int) -> Fraction:
        distance = Fraction(abs(int(y_N[index]))) - Fraction(sigma * sigma, scale)
        return distance * distance / (2 * sigma * sigma)

    found_N: IntArray = y_N[_bernoulli(stream, probability_N, exponent)]
    return found_N


def _laplace(stream: KeyStream, log_scale: int, count: int) -> IntArray:
    """Discrete Laplace samples of scale ``2**log_scale`` from ``count`` tries (algorithm 2)."""
    scale = 1 << log_scale
    low_N = np.zeros(count, np.int64)
    if log_scale:
        low_N = (stream.words(count) >> np.uint64(64 - log_scale)).astype(np.int64)
    kept = _bernoulli(stream, np.exp(-low_N / scale), lambda index: Fraction(int(low_N[index]), scale))
    low_N = low_N[kept]
    high_N = _geometric(stream, low_N.size)
    y_N = low_N + scale * high_N
    negative = (stream.words(y_N.size) & np.uint64(1)).astype(np.bool_)
    signed_N = np.where(negative, -y_N, y_N)
    made_N: IntArray = signed_N[~(negative & (y_N == 0))]
    return made_N


def _geometric(stream: KeyStream, count: int) -> IntArray:
    """The number of successes of ``exp(-1)`` before the first failure."""
    total_N = np.zeros(count, np.int64)
    going = np.arange(count)
    while going.size:
        success = _bernoulli(stream, np.full(going.size, math.exp(-1.0)), lambda _index: Fraction(1))
        going = going[success]
        total_N[going] += 1
    return total_N


def _bernoulli(stream: KeyStream, probability_N: NDArray[np.float64], exponent: Exponent) -> BoolArray:
    """Whether each of some independent events of probability ``exp(-r)`` happens.

    Args:
        stream: of random bits.
        probability_N: ``exp(-r)`` in float64, to ``_MARGIN``.
        exponent: of an index, the exact ``r``.
    """
    bits_N = stream.words(probability_N.size) >> np.uint64(64 - _BITS)
    uniform_N = bits_N.astype(np.float64) * 2.0**-_BITS
    happens: BoolArray = uniform_N < probability_N
    for index in np.flatnonzero(np.abs(uniform_N - probability_N) <= _MARGIN).tolist():
        happens[index] = _decided(stream, int(bits_N[index]), exponent(index))
    return happens


def _decided(stream: KeyStream, bits: int, exponent: Fraction) -> bool:
    """Whether the uniform number that begins with these bits is below ``exp(-exponent)``."""
    known, digits = _BITS, _DIGITS
    while True:
        context = Context(
            prec=digits
        )  # correctly rounded: each step has a relative error below 10**(1 - prec)
        argument = context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator))
        about = Fraction(context.exp(argument))
        slack = about * (2 + exponent) * Fraction(10) ** (2 - digits)
        low, high = Fraction(bits, 1 << known), Fraction(bits + 1, 1 << known)
        if high <= about - slack:
            return True
        if low >= about + slack:
            return False
        bits = (bits << _MORE_BITS) | int.from_bytes(stream.take(_MORE_BITS // 8), "big")
        known, digits = known + _MORE_BITS, digits + 20
