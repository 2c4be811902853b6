"""Noise is told from motion by its spectrum, and from what is normal by the sensor's own past."""

import numpy as np
import pytest

from edge_agent.windows.quality.noise import NoiseHistory, excesses, levels

WHITE, LIMIT = 0.6, 8.0


def white(count: int, deviation: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, deviation, (count, 3, 128)).astype(np.float32)


def moving(count: int, seed: int = 0) -> np.ndarray:
    """Steps at 2 Hz with overtones up to 10 Hz, each half as strong: lively, and smooth for all that."""
    rng = np.random.default_rng(seed)
    t = np.arange(128) / 50
    out = np.zeros((count, 3, 128))
    for overtone in range(1, 6):
        phase = rng.uniform(0, 2 * np.pi, (count, 3, 1))
        out += 0.5**overtone * np.sin(2 * np.pi * 2 * overtone * t + phase)
    return (out + rng.normal(0, 0.003, out.shape)).astype(np.float32)


def judged(history: NoiseHistory, x_BCT: np.ndarray) -> np.ndarray:
    return excesses(history, x_BCT, np.ones(len(x_BCT), bool), WHITE, LIMIT)


def test_both_levels_are_the_variance_of_white_noise_and_of_motion_the_sixth_is_far_lower():
    second, sixth, variance = levels(white(200, 0.3))
    assert second.mean() == pytest.approx(0.09, rel=0.05)
    assert sixth.mean() == pytest.approx(0.09, rel=0.12)  # few independent values: the median is high
    assert variance.mean() == pytest.approx(0.09, rel=0.05)
    second, sixth, _ = levels(moving(50))
    assert (sixth < WHITE * second).all()


def test_motion_after_a_long_rest_is_no_noise():
    history = NoiseHistory(256, 16)
    judged(history, white(100, 0.003))
    assert (judged(history, moving(50)) < LIMIT).all()


def test_noise_at_10_db_is_found_in_motion():
    history = NoiseHistory(256, 16)
    judged(history, moving(60))
    noisy = moving(40, 1) + white(40, float(np.sqrt(moving(40, 1).var() / 10)), 1)
    assert (judged(history, noisy) >= LIMIT).all()


def test_nothing_is_found_before_there_is_a_past():
    assert (judged(NoiseHistory(256, 16), white(16, 1.0)) == 0).all()


def test_a_past_that_is_noisy_for_the_most_part_still_shows_what_is_normal():
    history = NoiseHistory(256, 16)
    judged(history, white(40, 0.5))
    judged(history, white(32, 0.003))
    assert (judged(history, white(10, 0.5, 1)) >= LIMIT).all()


def test_a_sensor_that_has_become_noisier_for_good_is_normal_in_the_end():
    history = NoiseHistory(64, 16)
    judged(history, white(64, 0.003))
    excess = judged(history, white(400, 0.1, 1))
    assert excess[0] >= LIMIT
    assert (excess[-64:] < LIMIT).all()


def test_windows_with_a_fault_of_another_kind_are_not_remembered():
    history = NoiseHistory(64, 16)
    judged(history, white(30, 0.1))
    stuck = np.zeros((200, 3, 128), np.float32)
    stuck[:, :, ::9] = 1e-6  # nearly still
    assert (excesses(history, stuck, np.zeros(200, bool), WHITE, LIMIT) == 0).all()
    assert (judged(history, white(20, 0.1, 2)) < LIMIT).all()


def test_what_was_seen_in_one_batch_is_what_is_seen_one_by_one():
    x_BCT = np.concatenate([moving(40), moving(40, 2) + white(40, 0.3)])
    one, many = NoiseHistory(32, 16), NoiseHistory(32, 16)
    singly = np.concatenate([judged(one, x_BCT[b : b + 1]) for b in range(len(x_BCT))])
    assert np.array_equal(singly, judged(many, x_BCT))
