"""The clip follows a quantile of the norms, and its noise is paid for by that of the sum."""

import math

import numpy as np
import pytest

from models.privacy.adaptive_clip import next_clip
from models.privacy.noisy_fold import RoundNoise, sigma_of
from protocol.tasks.folding import AdaptiveClip, Privacy

KEY = bytes(range(32))


def table(**changes: object) -> Privacy:
    adaptive = AdaptiveClip(**{"count_noise": 1.0, **changes})  # type: ignore[arg-type]
    return Privacy(clip=2.0, noise_multiplier=1.0, adaptive_clip=adaptive)


def digests(count: int) -> list[str]:
    return [f"{n:064x}" for n in range(count)]


def test_the_clip_grows_while_few_are_within_and_shrinks_while_many_are() -> None:
    noise, names = RoundNoise(table(count_noise=0.51), KEY), digests(1000)
    for bits, share in (([0.0] * 1000, 0.0), ([1.0] * 1000, 1.0), ([1.0, 0.0] * 500, 0.5)):
        found = next_clip(noise, 2.0, bits, names)
        assert found == pytest.approx(2.0 * math.exp(-0.2 * (share - 0.5)), rel=1e-3)


def test_it_converges_to_the_quantile_of_the_norms() -> None:
    rng = np.random.default_rng(0)
    clip, names = 0.05, digests(400)
    for round_ in range(80):
        norms_N = rng.lognormal(0.0, 0.5, 400)
        privacy = table(quantile=0.8, count_noise=20.0).model_copy(update={"clip": clip})
        noise = RoundNoise(privacy, bytes([round_]) * 32)
        clip = next_clip(noise, 0.05, (norms_N <= clip).astype(float), names)
    assert clip == pytest.approx(np.exp(0.5 * 0.8416), rel=0.15)


def test_the_noise_of_the_count_is_what_the_table_says_and_the_same_when_repeated() -> None:
    privacy, names = table(count_noise=50.0, lr=1.0), digests(100)
    found = [next_clip(RoundNoise(privacy, bytes([n]) * 32), 2.0, [1.0, 0.0] * 50, names) for n in range(250)]
    shares = -np.log(np.array(found) / 2.0)  # those beyond 0 and 1 are cut
    inside = np.abs(shares) < 0.49
    assert 0.55 < inside.mean() < 0.8  # of a Gaussian with deviation 0.5: 0.67
    again = next_clip(RoundNoise(privacy, bytes(32)), 2.0, [1.0, 0.0] * 50, names)
    assert again == found[0]
    assert next_clip(RoundNoise(privacy, bytes(32)), 2.0, [1.0, 0.0] * 50, [*names[:99], "f" * 64]) != again


def test_a_device_cannot_say_more_than_a_bit() -> None:
    noise, names = RoundNoise(table(), KEY), digests(10)
    honest = next_clip(noise, 2.0, [1.0] * 10, names)
    assert next_clip(noise, 2.0, [1e30] * 10, names) == honest
    assert next_clip(noise, 2.0, [-1e30] * 10, names) == next_clip(noise, 2.0, [0.0] * 10, names)


def test_the_clip_stays_within_bounds_of_the_tasks() -> None:
    high = RoundNoise(table(lr=2.0).model_copy(update={"clip": 1999.0}), KEY)
    assert next_clip(high, 2.0, [0.0] * 9, digests(9)) == 2000.0
    low = RoundNoise(table(lr=2.0).model_copy(update={"clip": 0.0021}), KEY)
    assert next_clip(low, 2.0, [1.0] * 9, digests(9)) == 0.002


def test_sum_and_count_together_cost_what_the_table_says() -> None:
    privacy = table(count_noise=0.8)
    of_sum, of_count = 1 / privacy.sum_multiplier, 1 / (2 * 0.8)
    assert math.hypot(of_sum, of_count) == pytest.approx(1 / privacy.noise_multiplier)
    plain = privacy.model_copy(update={"adaptive_clip": None})
    assert sigma_of(privacy, 0) > sigma_of(plain, 0)
    with pytest.raises(ValueError, match="must be over half of noise_multiplier"):
        table(count_noise=0.5)
    with pytest.raises(ValueError, match="the clip is fixed"):
        next_clip(RoundNoise(plain, KEY), 2.0, [], [])
