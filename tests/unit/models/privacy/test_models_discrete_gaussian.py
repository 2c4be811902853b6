"""Discrete Gaussian noise: exact probabilities, secret and repeatable bits."""

import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from models.privacy import discrete_gaussian as module
from models.privacy.discrete_gaussian import discrete_gaussian
from models.privacy.key_stream import KeyStream, derived_key

KEY = bytes(range(32))
VECTOR = [-26581522, -14015478]


def stream(number: int = 0) -> KeyStream:
    return KeyStream(derived_key(KEY, ["test", str(number)]))


def probabilities(sigma: int, values: np.ndarray) -> np.ndarray:
    every = np.arange(-60 * sigma, 60 * sigma + 1, dtype=np.float64)
    return np.exp(-(values**2) / (2 * sigma**2)) / np.exp(-(every**2) / (2 * sigma**2)).sum()


@pytest.mark.parametrize("sigma", [1, 2, 3, 7])
def test_samples_have_the_exact_probabilities(sigma: int) -> None:
    count = 200_000
    x_N = discrete_gaussian(stream(sigma), sigma, count)
    most = 3 * sigma
    values = np.arange(-most, most + 1)
    expected = count * probabilities(sigma, values)
    found = np.array([(x_N == value).sum() for value in values])
    rest = count - expected.sum(), count - found.sum()
    test = stats.chisquare([*found, rest[1]], [*expected, rest[0]])
    assert test.pvalue > 1e-4
    # the same counts are not those of a neighbour, so the test can fail
    other = count * probabilities(sigma, values + 0.02 * sigma)
    shifted = stats.chisquare([*found, rest[1]], [*other, count - other.sum()])
    assert shifted.pvalue < 1e-4 or sigma == 1


def test_large_samples_are_gaussian_in_all_bits() -> None:
    sigma, count = 3 << 22, 200_000
    x_N = discrete_gaussian(stream(), sigma, count)
    assert stats.kstest(x_N / sigma, "norm").pvalue > 1e-4
    assert abs(x_N.std() / sigma - 1) < 0.01
    low = np.bincount(x_N % 64, minlength=64)
    assert stats.chisquare(low).pvalue > 1e-4


def test_decisions_in_floating_point_are_those_of_exact_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = discrete_gaussian(stream(), 12345, 3000)
    monkeypatch.setattr(module, "_MARGIN", 2.0)  # every decision is made in decimals
    exact = discrete_gaussian(stream(), 12345, 3000)
    assert (fast == exact).all()


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1), Fraction(7, 3), Fraction(300)])
def test_undecided_bits_are_followed_by_more(exponent: Fraction) -> None:
    context = Context(prec=60)
    power = context.exp(context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))
    about = math.floor(Fraction(power) * 2**53)
    near = max(0, min(2**53 - 1, about))  # the cell that holds the probability itself: 53 bits cannot decide
    answers = {module._decided(stream(number), near, exponent) for number in range(40)}
    assert answers == ({True} if exponent == 0 else {False} if exponent == 300 else {True, False})
    assert module._decided(stream(), max(0, near - 2), exponent) or exponent == 300
    assert not module._decided(stream(), min(2**53 - 1, near + 2), exponent) or exponent == 0


def test_a_key_gives_the_same_noise_again_and_another_key_other_noise() -> None:
    first, again = discrete_gaussian(stream(), 1 << 24, 1000), discrete_gaussian(stream(), 1 << 24, 1000)
    assert (first == again).all()
    assert (first != discrete_gaussian(stream(1), 1 << 24, 1000)).sum() > 990
    # by a test vector: a release that derives other noise would publish a repeated round twice
    assert first[:2].tolist() == VECTOR


def test_a_stream_is_the_same_however_it_is_read() -> None:
    whole = stream().take(3 << 20)
    parts = stream()
    assert b"".join([parts.take(1), parts.take((1 << 20) - 1), parts.take(2 << 20)]) == whole


def test_keys_are_separate_for_each_purpose_and_text() -> None:
    keys = {derived_key(KEY, about) for about in (["a", "b"], ["ab"], ["a", "b", ""], ["b", "a"])}
    assert len(keys) == 4
    with pytest.raises(ValueError, match="must have 32"):
        derived_key(b"short", [])
    with pytest.raises(ValueError, match="must have 32"):
        KeyStream(b"short")


@pytest.mark.parametrize("sigma", [0, (1 << 40) + 1])
def test_a_sigma_beyond_the_bounds_is_refused(sigma: int) -> None:
    with pytest.raises(ValueError, match="sigma is"):
        discrete_gaussian(stream(), sigma, 1)
