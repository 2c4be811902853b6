"""Who is like whom, what that weighs, and who is pushed out."""

import math

import numpy as np
import pytest

from models.methods.tactfl import TactflConfig
from models.methods.tactfl.similarity import (
    SHOWN,
    Likeness,
    SimilarityRows,
    by_similarity,
    clamp,
    floored,
    literal,
    pushed_out,
    shown,
    softmax,
)


def around(angles_deg) -> np.ndarray:
    """Views of length 2 in a plane: the cosine of two is that of the angle between them."""
    turn_K = np.deg2rad(angles_deg)
    return np.stack([2 * np.cos(turn_K), 2 * np.sin(turn_K)], axis=1).astype(np.float32)


def test_similarity_is_the_cosine_and_does_not_depend_on_length():
    views_KD = np.array([[1, 0], [3, 3], [0, 2], [-5, 0]], np.float32)
    half = math.sqrt(0.5)
    expected_KK = [[1, half, 0, -1], [half, 1, half, -half], [0, half, 1, 0], [-1, -half, 0, 1]]
    np.testing.assert_allclose(Likeness.of(views_KD).rows(slice(None)), expected_KK, atol=1e-8)
    means_K = Likeness.of(views_KD).mean_to_others()
    np.testing.assert_allclose(means_K, [(half - 1) / 3, half / 3, half / 3, -(1 + half) / 3], atol=1e-8)


def test_a_view_of_zeros_is_like_no_other_and_huge_or_tiny_ones_keep_their_direction():
    views_KD = np.array([[0, 0], [1e38, 1e38], [1e-38, 1e-38], [1, 1]])
    s_KK = Likeness.of(views_KD).rows(slice(None))
    assert s_KK[0].tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(s_KK[1:, 1:], 1, atol=1e-9)
    assert Likeness.of(views_KD).mean_to_others()[0] == 0


def test_centring_on_the_median_tells_apart_what_is_near_identical():
    views_KD = np.array([[100, 1], [100, 2], [100, -1], [100, -2], [100, 0]], np.float32)
    assert Likeness.of(views_KD).rows(slice(None)).min() > 0.999
    s_KK = Likeness.of(views_KD, centre=True).rows(slice(None))
    assert s_KK[:4, :4].tolist() == [[1, 1, -1, -1], [1, 1, -1, -1], [-1, -1, 1, 1], [-1, -1, 1, 1]]
    assert s_KK[4, :4].tolist() == [0, 0, 0, 0]  # the median itself


def test_views_that_are_not_finite_are_a_fault_of_the_caller():
    with pytest.raises(ValueError, match="finite"):
        Likeness.of(np.array([[1.0, np.nan], [1.0, 0.0]]))


def test_weights_of_three_devices_worked_by_hand():
    # S: 0-1 is 1, 0-2 and 1-2 are -0.5; means to the others 0.25, 0.25, -0.5
    mean_K = Likeness.of(around([0, 0, 120])).mean_to_others()
    np.testing.assert_allclose(mean_K, [0.25, 0.25, -0.5], atol=1e-7)
    e = math.exp(2 * 0.25), math.exp(2 * -0.5)
    np.testing.assert_allclose(
        softmax(mean_K, 2.0), np.array([e[0], e[0], e[1]]) / (2 * e[0] + e[1]), atol=1e-6
    )
    np.testing.assert_allclose(clamp(mean_K), [0.5, 0.5, 0])
    assert literal(np.array([0.25, 0.25, -0.5])) is None  # the row sums cancel
    assert clamp(np.array([-0.1, 0.0])) is None
    np.testing.assert_allclose(literal(np.array([0.6, 0.3, 0.1])), [0.6, 0.3, 0.1])


def test_who_sends_nothing_new_is_in_the_middle_of_all_and_weighs_most():
    """What weights do not guard against; docs/methods/tactfl.md says so."""
    views_KD = np.array([[1, 0.3, 0], [1, -0.3, 0], [1, 0, 0.3], [1, 0, -0.3], [1, 0, 0]], np.float32)
    share_K = softmax(Likeness.of(views_KD).mean_to_others(), 5.0)
    assert share_K.argmax() == 4
    np.testing.assert_allclose(share_K[:4], share_K[0], atol=1e-8)


def test_the_rule_is_that_of_the_config():
    mean_K = np.array([0.9, 0.3, -0.2])
    by_rule = {
        rule: by_similarity(mean_K, TactflConfig.model_validate({"rule": rule, "sharpness": 3.0})).tolist()
        for rule in ("softmax", "clamp", "literal")
    }
    assert by_rule["softmax"] == softmax(mean_K, 3.0).tolist()
    assert by_rule["clamp"] == by_rule["literal"] == pytest.approx([0.75, 0.25, 0])


def test_a_sharpness_without_bounds_overflows_nothing():
    assert softmax(np.array([1.0, -1.0]), 1000.0).tolist() == [1.0, 0.0]
    assert softmax(np.array([-1.0, -1.0]), 1000.0).tolist() == [0.5, 0.5]


def test_the_floor_gives_some_of_each_weight_to_all():
    np.testing.assert_allclose(floored(np.array([1.0, 0, 0, 0]), 0.1), [0.925, 0.025, 0.025, 0.025])
    assert floored(np.array([0.7, 0.3]), 1.0).tolist() == [0.5, 0.5]
    assert floored(np.array([0.7, 0.3]), 0.0).tolist() == [0.7, 0.3]


def test_small_fleets_are_shown_as_a_matrix_and_large_ones_row_by_row():
    rng = np.random.default_rng(0)
    names = [f"d{k:03d}" for k in range(SHOWN + 1)]
    alike = Likeness.of(rng.normal(size=(len(names), 4)))
    lazy = shown(names, alike)
    assert isinstance(lazy, SimilarityRows)
    small = Likeness.of(rng.normal(size=(5, 4)))
    plain = shown(names[:5], small)
    assert type(plain) is dict
    for matrix, some, source in ((lazy, names[::50], alike), (plain, names[:5], small)):
        assert len(matrix) == len(list(matrix)) == len(source)
        for a in some:
            assert matrix[a][a] == 1
            for b in some:
                assert matrix[a][b] == pytest.approx(matrix[b][a], abs=2e-9)
                at = names.index(a), names.index(b)
                assert matrix[a][b] == pytest.approx(source.unit_KD[at[0]] @ source.unit_KD[at[1]], abs=2e-9)


def groups_of(angles_deg, sharpness=5.0, floor=0.1):
    alike = Likeness.of(around(angles_deg))
    return pushed_out(alike, floored(softmax(alike.mean_to_others(), sharpness), floor))


def test_devices_that_agree_among_themselves_and_not_with_the_rest_are_a_group():
    (group,) = groups_of([0, 5, 100, -5, 3, 105, -3, 1])
    assert group.devices == (2, 5)
    assert group.weight < 0.5 * group.equal == 0.5 * 0.25
    assert group.within == pytest.approx(math.cos(math.radians(5)), abs=1e-3)
    assert group.between == pytest.approx(-0.2, abs=0.05)


def test_who_is_light_together_need_not_be_so_alone():
    alike = Likeness.of(around([0, 1, 2, 100, 101]))
    for shares, expected in (
        ([0.28, 0.28, 0.29, 0.03, 0.12], [(3, 4)]),
        ([0.28, 0.28, 0.24, 0.03, 0.17], []),
    ):
        assert [group.devices for group in pushed_out(alike, np.array(shares))] == expected


def test_two_groups_are_two():
    groups = groups_of([0, 1, 2, 3, 4, 5, 6, 100, 101, -100, -101], sharpness=10)
    assert [group.devices for group in groups] == [(7, 8), (9, 10)]


def test_near_identical_models_have_groups_too_because_what_counts_is_relative():
    assert [g.devices for g in groups_of([0, 1, 0.5, -1, -0.5, 8, 8.2], sharpness=1000, floor=0.05)] == [
        (5, 6)
    ]


@pytest.mark.parametrize(
    "angles",
    [
        [0],
        [0, 90],
        [0, 1, 2, 3, 4],
        [0, 2, 1, 170],
        [0, 2, 1, 3, 120, -120],
        [0, 1, 2, 3, 4, 100, 170],
        [0, 1, 2, 180, 181, 182],
    ],
    ids=[
        "one",
        "two",
        "all alike",
        "one broken",
        "two that are broken each its own way",
        "two that are nearer to each other than to the rest, but not near",
        "two halves",
    ],
)
def test_nobody_is_called_a_group_who_is_none(angles):
    assert groups_of(angles) == []


def test_a_light_group_that_the_floor_raises_is_no_longer_pushed_out():
    angles = [0, 5, 100, -5, 3, 105, -3, 1]
    assert groups_of(angles, floor=0.1)
    assert groups_of(angles, floor=0.6) == []


def test_groups_are_found_in_a_large_fleet_without_a_matrix_of_it():
    rng = np.random.default_rng(1)
    angles = np.concatenate([rng.normal(0, 5, 2500), rng.normal(100, 2, 40)])
    (group,) = groups_of(angles)
    assert group.devices == tuple(range(2500, 2540))
