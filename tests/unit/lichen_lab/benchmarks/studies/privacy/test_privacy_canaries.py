"""The canary test on real clip, checks, fold and noise: below the claim, and above it if one is broken."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lichen_lab.benchmarks.studies.privacy import fleets
from lichen_lab.benchmarks.studies.privacy.audit import bounds, canaries
from lichen_lab.benchmarks.studies.privacy.audit.bounds import (
    bound_of,
    epsilon_if_normal,
    epsilon_of_guesses,
    highest_rate,
)
from lichen_lab.benchmarks.studies.privacy.settings import PrivacyOutcome, PrivacySetting
from lichen_lab.benchmarks.study.run_spec import quiet
from models.privacy import noisy_fold
from models.privacy.accountant import gaussian_epsilon, poisson_epsilon
from models.privacy.discrete_gaussian import discrete_gaussian

EACH = {"rounds": 1, "rate": 1.0, "noise_multiplier": 4.0, "delta": 1e-5}
DRAWN = {"rounds": 4, "rate": 0.5, "noise_multiplier": 2.0, "delta": 1e-5}


def audited(setting: dict[str, Any], count: int = 1024, seed: int = 0, **broken: Any) -> PrivacyOutcome:
    return canaries.audit(fleets.canaries(count), PrivacySetting(**setting, config=broken), seed, quiet)


def test_audit_the_bound_is_below_the_claim_and_above_it_without_the_clip() -> None:
    sound = audited(EACH)
    assert sound.epsilon == pytest.approx(gaussian_epsilon(2.0, 1, 1e-5))
    assert sound.epsilon is not None
    assert sound.refused == 0
    assert 0 < sound.attack["bound"] < sound.epsilon
    assert 0.4 * sound.epsilon < sound.attack["bound_if_normal"] < sound.epsilon
    broken = audited(EACH, device_clips=False, coordinator_checks=False)
    assert broken.epsilon == sound.epsilon
    assert broken.attack["bound"] > sound.epsilon
    assert broken.attack["bound_if_normal"] > sound.epsilon


def test_audit_without_the_clip_on_devices_the_coordinator_refuses_and_nothing_is_found() -> None:
    outcome = audited(EACH, 256, device_clips=False)
    assert outcome.refused == 256
    assert set(outcome.attack.values()) == {0.0}


def test_audit_finds_noise_that_is_half_of_what_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        noisy_fold,
        "discrete_gaussian",
        lambda stream, sigma, count: discrete_gaussian(stream, sigma // 2, count),
    )
    outcome = audited(EACH)
    assert outcome.epsilon is not None
    assert outcome.attack["bound_if_normal"] > outcome.epsilon


def test_audit_of_a_sample_is_below_the_claim_and_above_it_without_the_clip() -> None:
    sound = audited(DRAWN, 512)
    assert sound.epsilon == pytest.approx(poisson_epsilon(2.0, 0.5, 4, 1e-5))
    assert sound.epsilon is not None
    assert 0 < sound.attack["bound"] < sound.epsilon
    broken = audited(DRAWN, 512, device_clips=False, coordinator_checks=False)
    assert broken.attack["bound"] > sound.epsilon


def test_audit_the_same_seed_gives_the_same_bounds() -> None:
    small = {**EACH, "rounds": 2}
    assert audited(small, 64).attack == audited(small, 64).attack
    assert audited(small, 64, noise_share=0.5).attack != audited(small, 64).attack


def test_bounds_of_rates_and_of_guesses_are_those_of_the_formulas() -> None:
    for found, count in ((0, 50), (3, 50), (49, 50)):
        expected = stats.binomtest(found, count, alternative="less").proportion_ci(0.95).high
        assert highest_rate(found, count, 0.05) == pytest.approx(expected, rel=1e-6)
    assert highest_rate(50, 50, 0.05) == 1.0
    # without delta: the probability of so many right guesses of randomized response
    found_epsilon = epsilon_of_guesses(1000, 200, 180, 0.0, 0.95)
    rate = 1 / (1 + math.exp(-found_epsilon))
    assert stats.binom.sf(179, 200, rate) == pytest.approx(0.05, rel=1e-4)
    assert epsilon_of_guesses(1000, 200, 180, 1e-5, 0.95) < found_epsilon
    assert epsilon_of_guesses(1000, 200, 100, 0.0, 0.95) == 0.0
    assert epsilon_of_guesses(1000, 0, 0, 0.0, 0.95) == 0.0


def test_bounds_hold_for_randomized_response_which_reaches_its_epsilon() -> None:
    epsilon, rng, above = 1.0, np.random.default_rng(5), 0
    for _ in range(100):
        in_M = rng.integers(0, 2, 2000).astype(np.bool_)
        told_M = np.where(rng.random(2000) < 1 / (1 + math.exp(-epsilon)), in_M, ~in_M)
        above += bound_of(told_M + 1e-9 * rng.random(2000), in_M, 0.0) > epsilon
    assert above <= 5


def test_bounds_if_normal_are_below_the_epsilon_of_the_noise_and_near_it() -> None:
    rng, found = np.random.default_rng(6), []
    for _ in range(50):
        in_M = rng.integers(0, 2, 4000).astype(np.bool_)
        score_M = np.where(in_M, 0.5, -0.5) + rng.standard_normal(4000)
        found.append(epsilon_if_normal(score_M, in_M, 0.0, 1e-5))
    claim = gaussian_epsilon(1.0, 1, 1e-5)
    assert sum(bound > claim for bound in found) <= 2
    assert np.mean(found) > 0.85 * claim
    assert epsilon_if_normal(-score_M, in_M, 0.0, 1e-5) == 0.0


def test_bounds_of_few_canaries_are_nothing() -> None:
    assert bound_of(np.arange(2.0), np.array([False, True]), 1e-5) == 0.0
    assert bounds.CONFIDENCE == 0.95
