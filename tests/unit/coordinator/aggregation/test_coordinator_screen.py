"""Who is an outlier: by the round's own median, the last round's where that says more, never by order."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.aggregation.outlier_screen import STATISTICS_LENIENCY, WEIGHT, WEIGHT_LENIENCY, screen
from models.aggregation.update_norms import STATISTICS, magnitudes, part_of
from protocol.errors import Reason


def of(*values: float, part: str = "head") -> dict[str, dict[str, float]]:
    return {f"d{n}": {part: value} for n, value in enumerate(values)}


def test_a_hundred_times_the_median_is_lost_and_named():
    found = screen(of(1.0, 1.1, 0.9, 1.0, 100.0), {}, 12.0)
    assert set(found.lost) == {"d4"}
    assert found.lost["d4"].reason is Reason.OUTLIER
    assert "'head'" in found.lost["d4"].detail
    assert "outlier_factor 12" in found.lost["d4"].detail
    assert found.reference == {"head": 1.0}  # the lower median of the four that are left


def test_honest_devices_that_differ_as_measured_stay():
    assert not screen(of(1.0, 0.3, 2.0, 6.5, 0.1), {}, 12.0).lost
    assert not screen(of(1.0, 17.0, 1.0, part="encoder/a" + STATISTICS), {}, 12.0).lost
    assert screen(of(1.0, STATISTICS_LENIENCY * 13, 1.0, part="e" + STATISTICS), {}, 12.0).lost


def test_zero_takes_all():
    assert not screen(of(1.0, 1.0, 1.0, 1e9), {}, 0.0).lost


def test_one_part_is_enough_and_a_part_that_few_send_is_compared_among_these():
    quiet = {"head": 1.0, "encoder/a": 1.0}
    found = screen(
        {
            "a": quiet,
            "b": quiet,
            "c": {"head": 1.0},
            "d": {"head": 1.0, "encoder/a": 50.0},
            "e": {"head": 1.0, "encoder/b": 50.0},
        },
        {},
        12.0,
    )
    assert set(found.lost) == {"d"}  # of e's encoder there is only one: nothing to compare it with


def test_two_updates_are_compared_with_the_last_round_alone():
    assert not screen(of(1.0, 100.0), {}, 12.0).lost
    assert set(screen(of(1.0, 100.0), {"head": 1.0}, 12.0).lost) == {"d1"}
    assert not screen(of(0.001, 1.0), {"head": 1.0}, 12.0).lost  # a tiny liar cannot make the honest one far


def test_a_quiet_round_does_not_make_the_usual_far():
    assert screen(of(0.01, 0.01, 1.0), {}, 12.0).lost
    assert not screen(of(0.01, 0.01, 1.0), {"head": 1.0}, 12.0).lost


def test_a_part_that_nobody_moves_is_not_judged():
    assert not screen(of(0.0, 0.0, 0.0, 1e-9), {}, 12.0).lost


def test_a_second_screen_of_what_is_left_finds_nothing():
    first = screen(of(1.0, 1.0, 1.0, 11.0, 40.0, 900.0, 1e6), {}, 12.0)
    left = {d: p for d, p in of(1.0, 1.0, 1.0, 11.0, 40.0, 900.0, 1e6).items() if d not in first.lost}
    assert not screen(left, {}, 12.0).lost


def test_a_large_weight_is_compared_with_those_of_one_too():
    fleet = {"a": {"head": 1.0}, "b": {"head": 1.0}, "c": {"head": 1.0, WEIGHT: 10_000.0}}
    found = screen(fleet, {}, 12.0)
    assert list(found.lost) == ["c"]
    assert found.reference[WEIGHT] == 1.0


def test_weights_are_compared_leniently():
    usual = {WEIGHT: 10.0}
    fleet = {"a": usual, "b": usual, "c": {WEIGHT: 10 * 12 * WEIGHT_LENIENCY}}
    assert not screen(fleet, {}, 12.0).lost
    fleet["c"] = {WEIGHT: 10 * 13 * WEIGHT_LENIENCY}
    assert set(screen(fleet, {}, 12.0).lost) == {"c"}


@given(st.lists(st.floats(0, 1e6), max_size=12), st.integers(0, 99))
def test_no_order_changes_a_verdict_and_never_half_is_lost(values, seed):
    fleet = of(*values)
    names = list(fleet)
    random.Random(seed).shuffle(names)
    one, other = screen(fleet, {}, 5.0), screen({name: fleet[name] for name in names}, {}, 5.0)
    assert one.reference == other.reference
    assert {d: str(r) for d, r in one.lost.items()} == {d: str(r) for d, r in other.lost.items()}
    once = screen(fleet, {}, 5.0).lost
    assert len(once) < len(values) or not values


def test_parts_are_blobs_with_running_statistics_apart():
    assert part_of("encoder/a/convolutions.1.running_var") == "encoder/a statistics"
    assert part_of("encoder/a/fc.weight") == "encoder/a"
    got = magnitudes({"head/b": np.full(9, 3.0, np.float32), "head/a": np.full(1, -3.0, np.float32)})
    assert got == {"head": pytest.approx(3.0)}
