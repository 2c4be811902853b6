"""The test for uniform bytes: what it lets pass, and what not."""

import numpy as np
import pytest

from lichen_lab.simulation.deterministic.protected.uniformity import UNIFORM, deviation, histogram, nothing
from protocol.secure_aggregation.ring import packed, to_words


@pytest.mark.parametrize("size", [100, 400, 10_000, 1_000_000])
def test_world_uniform_bytes_pass(size: int) -> None:
    rng = np.random.default_rng(size)
    found = [deviation(histogram(rng.bytes(size))) for _ in range(50)]
    assert max(map(abs, found)) < UNIFORM / 1.5
    assert abs(float(np.mean(found))) < 1.0, "in the mean there is no deviation"


@pytest.mark.parametrize("size", [100, 2500])
@pytest.mark.parametrize("bits", [16, 24, 32, 48, 64])
def test_world_plain_vectors_do_not_pass(size: int, bits: int) -> None:
    """Small whole numbers have bytes of zeros and ones before them, in any ring."""
    steps_N = np.round(np.random.default_rng(bits).normal(0, 10, size)).astype(np.int64)
    assert deviation(histogram(packed(to_words(steps_N, bits), bits))) > UNIFORM


def test_world_a_single_byte_that_comes_too_often_is_found_among_many() -> None:
    data = np.random.default_rng(1).bytes(1_000_000) + bytes(1000)
    assert deviation(histogram(data)) > UNIFORM
    assert deviation(nothing()) == 0.0
