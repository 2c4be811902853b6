"""Robust folds: right, free of order and grouping to the bit, bounded in memory, and hard to move."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.aggregation import robust as robust_module
from models.aggregation.prototype_median import GeometricMedian, row_fold
from models.aggregation.robust import ClippedMean, Coordinatewise, delta_fold, median, trimmed_mean
from protocol.errors import Reason, Refused
from protocol.tasks.folding import Robust

SHAPES = {"encoder/a/w": (2, 3), "encoder/b/w": (4,), "head/w": (3,), "head/bn.running_mean": (2,)}
FOLDS = ["clip", "trimmed_mean", "median"]
VALUES = st.floats(-8, 8, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0])


def updates_of(names):
    return st.fixed_dictionaries({name: arrays(np.float32, SHAPES[name], elements=VALUES) for name in names})


SOME = st.lists(
    st.sampled_from([[*SHAPES], ["encoder/a/w", "head/w"], ["head/w"]]).flatmap(updates_of),
    min_size=1,
    max_size=7,
)


def folded(fold, updates):
    made = delta_fold(Robust(fold=fold), SHAPES)
    for update in updates:
        made.add(update)
    return {name: tensor.tobytes() for name, tensor in made.mean().items()}


@settings(deadline=None, max_examples=60)
@given(SOME, st.sampled_from(FOLDS), st.randoms(use_true_random=False), st.data())
def test_any_order_and_grouping_give_the_same_bytes(updates, fold, random, data):
    expected = folded(fold, updates)
    shuffled = list(updates)
    random.shuffle(shuffled)
    assert folded(fold, shuffled) == expected
    cut = data.draw(st.integers(0, len(updates)))
    left, right = (delta_fold(Robust(fold=fold), SHAPES) for _ in range(2))
    for update in shuffled[:cut]:
        left.add(update)
    for update in shuffled[cut:]:
        right.add(update)
    left.merge(right)
    assert {name: tensor.tobytes() for name, tensor in left.mean().items()} == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(updates_of(["head/w", "encoder/b/w"]), min_size=1, max_size=9))
def test_median_and_trimmed_mean_are_those_of_numpy(updates):
    for name in ("head/w", "encoder/b/w"):
        stacked = np.stack([u[name] for u in updates]).astype(np.float64)
        got = delta_fold(Robust(fold="median"), SHAPES)
        trimmed = delta_fold(Robust(fold="trimmed_mean", trim=0.2), SHAPES)
        for update in updates:
            got.add(update)
            trimmed.add(update)
        np.testing.assert_allclose(got.mean()[name], np.median(stacked, axis=0), atol=1e-6)
        cut = min(math.ceil(0.2 * len(updates) - 1e-9), (len(updates) - 1) // 2)
        inner = np.sort(stacked, axis=0)[cut : len(updates) - cut]
        np.testing.assert_allclose(trimmed.mean()[name], inner.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize(("count", "cut"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3)])
def test_trimming_rounds_up_and_leaves_at_least_one(count, cut):
    x = np.arange(count, dtype=np.float32)[:, None] ** 3
    expected = np.sort(x[:, 0])[cut : count - cut].mean()
    assert trimmed_mean(x.copy(), 0.2)[0] == pytest.approx(expected)
    assert trimmed_mean(np.array([[1.0], [2.0]], np.float32), 0.49)[0] == 1.5


@given(st.integers(2, 9), st.floats(-1000, 1000, width=32))
def test_less_than_half_of_liars_stay_within_what_the_honest_said(honest, lie):
    liars = (honest - 1) if honest < 5 else honest // 2
    said = np.linspace(1.0, 2.0, honest, dtype=np.float32)
    x = np.concatenate([said, np.full(liars, lie, np.float32)])[:, None]
    assert 1.0 <= median(x.copy())[0] <= 2.0
    half = np.float32(min(0.499, liars / len(x) + 1e-6))
    assert 1.0 - 1e-6 <= trimmed_mean(x.copy(), float(half))[0] <= 2.0 + 1e-6


def test_clipping_bounds_each_part_by_the_rounds_median_length():
    made = delta_fold(Robust(fold="clip"), SHAPES)
    for scale in (1.0, 1.0, 1.0, 1000.0):
        made.add({"head/w": np.full(3, scale, np.float32), "encoder/b/w": np.full(4, 1.0, np.float32)})
    np.testing.assert_allclose(made.mean()["head/w"], 1.0, atol=1e-5)
    np.testing.assert_allclose(made.mean()["encoder/b/w"], 1.0, atol=1e-6)
    loose = delta_fold(Robust(fold="clip", clip_factor=2.0), SHAPES)
    for scale in (1.0, 1.0, 1.0, 1000.0):
        loose.add({"head/w": np.full(3, scale, np.float32)})
    np.testing.assert_allclose(loose.mean()["head/w"], (3 + 2) / 4, atol=1e-5)


def test_running_statistics_are_clipped_apart_from_trained_values():
    made = delta_fold(Robust(fold="clip"), SHAPES)
    for scale in (1.0, 1.0, 50.0):
        made.add({"head/w": np.ones(3, np.float32), "head/bn.running_mean": np.full(2, scale, np.float32)})
    np.testing.assert_allclose(made.mean()["head/w"], 1.0, atol=1e-6)
    np.testing.assert_allclose(made.mean()["head/bn.running_mean"], 1.0, atol=1e-5)


@pytest.mark.parametrize("fold", FOLDS)
def test_an_update_of_nothing_but_zeros_does_no_harm(fold):
    made = delta_fold(Robust(fold=fold), SHAPES)
    for _ in range(3):
        made.add({"head/w": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(made.mean()["head/w"], 0)
    assert set(made.mean()) == {"head/w"}


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize(
    ("tensors", "weight", "reason"),
    [
        ({"nose/w": np.ones(3, np.float32)}, 1, Reason.WRONG_TENSORS),
        ({"head/w": np.ones(4, np.float32)}, 1, Reason.WRONG_TENSORS),
        ({"head/w": np.full(3, np.nan, np.float32)}, 1, Reason.NON_FINITE),
        ({"head/w": np.full(3, 1e30, np.float32)}, 1, Reason.OUT_OF_BOUNDS),
        ({"head/w": np.ones(3, np.float32)}, 0, Reason.OUT_OF_BOUNDS),
    ],
)
def test_what_cannot_be_folded_is_refused_and_leaves_nothing_behind(fold, tensors, weight, reason):
    made = delta_fold(Robust(fold=fold), SHAPES)
    with pytest.raises(Refused) as caught:
        made.add({"encoder/b/w": np.ones(4, np.float32), **tensors}, weight)
    assert caught.value.reason is reason
    assert made.mean() == {}


def test_folds_of_other_tensors_are_not_merged():
    for kind in (lambda s: ClippedMean(s, 1.0, 1.0), lambda s: Coordinatewise(s, 1.0, median)):
        with pytest.raises(ValueError, match="same tensors"):
            kind({"a": (1,)}).merge(kind({"a": (2,)}))
    with pytest.raises(ValueError, match="one shape"):
        GeometricMedian(2, 3).merge(GeometricMedian(2, 4))


@pytest.mark.parametrize("fold", FOLDS)
def test_memory_does_not_grow_with_the_number_of_updates(fold, monkeypatch):
    monkeypatch.setattr(robust_module, "SLAB_VALUES", 1 << 14)
    size = 1 << 16

    def peak(count):
        rng = np.random.default_rng(0)
        tracemalloc.start()
        try:
            made = delta_fold(Robust(fold=fold), {"head/w": (size,)})
            for _ in range(count):
                made.add({"head/w": rng.normal(size=size).astype(np.float32)})
            made.mean()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(8), peak(64)
    assert many < 1.1 * few
    assert many < 8 * 4 * size  # of 64 updates held in memory it would be 64


ROWS = st.lists(
    st.sets(st.integers(0, 2), min_size=1).flatmap(
        lambda s: st.tuples(st.just(sorted(s)), arrays(np.float32, (len(s), 4), elements=VALUES))
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=40)
@given(ROWS, st.randoms(use_true_random=False), st.data())
def test_the_geometric_median_is_free_of_order_and_grouping(items, random, data):
    def of(parts):
        made = [row_fold(Robust(prototypes="geometric_median"), 3, 4) for _ in parts]
        for one, part in zip(made, parts, strict=True):
            for index, values in part:
                one.add("v", np.array(index), values)
        for other in made[1:]:
            made[0].merge(other)
        return made[0].mean().tobytes(), made[0].count_K.tolist()

    expected = of([items])
    shuffled = list(items)
    random.shuffle(shuffled)
    cut = data.draw(st.integers(0, len(items)))
    assert of([shuffled]) == expected
    assert of([shuffled[:cut], shuffled[cut:]]) == expected


def test_the_geometric_median_is_where_the_distances_sum_to_the_least():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(9, 4)).astype(np.float32)
    made = GeometricMedian(1, 4)
    for row in rows:
        made.add("v", np.array([0]), row[None])
    found = made.mean()[0]

    def cost(at):
        return np.sqrt(np.square(rows - at).sum(axis=1)).sum()

    assert cost(found) < cost(rows.mean(axis=0))
    for _ in range(200):
        assert cost(found) <= cost(found + rng.normal(0, 0.01, 4)) + 1e-5


def test_the_geometric_median_of_tiny_rows_is_as_exact_as_of_large_ones():
    rows = np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)
    found = []
    for scale in (1.0, 2.0**-14):
        made = GeometricMedian(1, 4)
        for row in rows:
            made.add("v", np.array([0]), np.float32(scale) * row[None])
        found.append(made.mean()[0] / np.float32(scale))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_one_liar_in_five_moves_the_mean_far_and_the_geometric_median_little():
    honest = [np.full((1, 4), 1.0 + 0.01 * n, np.float32) for n in range(4)]
    liar = np.full((1, 4), -500.0, np.float32)
    found = {}
    for kind in ("mean", "geometric_median"):
        made = row_fold(Robust(prototypes=kind), 1, 4)
        for row in (*honest, liar):
            made.add("v", np.array([0]), row)
        found[kind] = made.mean()[0, 0]
    assert found["mean"] < -90
    assert 0.9 < found["geometric_median"] < 1.1


def test_rows_in_several_blocks_are_the_same_median_as_in_one(monkeypatch):
    found = []
    for block in (4096, 3):
        monkeypatch.setattr("models.aggregation.prototype_median._BLOCK_ROWS", block)
        made = GeometricMedian(1, 4)
        for row in np.random.default_rng(2).normal(size=(11, 4)).astype(np.float32):
            made.add("v", np.array([0]), row[None])
        found.append(made.mean())
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_rows_that_all_agree_are_their_own_median():
    made = GeometricMedian(2, 4)
    for _ in range(3):
        made.add("v", np.array([1]), np.full((1, 4), 2.5, np.float32))
    np.testing.assert_array_equal(made.mean(), [[0] * 4, [2.5] * 4])
    assert made.count_K.tolist() == [0, 3]
