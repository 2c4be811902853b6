"""Times of samples of sound: jitter is smoothed, gaps stay, time never goes back, a wrong rate is found."""

import numpy as np
import pytest

from edge_agent.sources.gstreamer.sound_times import SoundTimes

RATE = 16_000


def run(blocks):
    times = SoundTimes(RATE)
    return times, [times.times(begin, n) for begin, n in blocks]


def test_jitter_of_blocks_does_not_reach_the_samples():
    rng = np.random.default_rng(0)
    times, found = run([(100 + i * 0.05 + rng.normal(0, 0.001), 800) for i in range(200)])
    t = np.concatenate(found)
    assert np.abs(np.diff(t) - 1 / RATE).max() < 0.0006
    assert np.abs(t - (100 + np.arange(len(t)) / RATE)).max() < 0.003
    assert times.gaps == 0
    assert times.found_hz is None


def test_a_lost_block_is_a_gap_and_the_next_one_has_its_own_time():
    times, found = run([(0.0, 800), (0.05, 800), (0.5, 800)])
    assert found[2][0] == pytest.approx(0.5)
    assert times.gaps == 1


@pytest.mark.parametrize("factor", [0.75, 1.5, 3.0])
def test_another_rate_than_declared_is_found_and_time_stays_near_the_blocks(factor):
    n = round(800 * factor)
    times, found = run([(i * 0.05, n) for i in range(300)])
    t = np.concatenate(found)
    assert (np.diff(t) >= 0).all()
    assert times.found_hz == pytest.approx(RATE * factor, rel=0.02)
    assert max(abs(part[0] - i * 0.05) for i, part in enumerate(found)) <= n / RATE


def test_a_clock_that_is_set_back_does_not_turn_time():
    _, found = run([(10.0, 800), (3.0, 800), (3.05, 800)])
    assert (np.diff(np.concatenate(found)) >= 0).all()


def test_a_slow_clock_of_the_card_is_followed():
    times, found = run([(i * 0.05 * 1.0002, 800) for i in range(4000)])
    assert abs(found[-1][0] - 3999 * 0.05 * 1.0002) < 0.002
    assert times.gaps == 0
