"""Aggregation algebra: order and grouping never change a bit, whatever the values."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.aggregation.exact_sums import MAX_ABS, FixedPointSum, RowSum
from models.methods.qqr import QqrConfig
from models.methods.qqr.prototypes import cumulative
from models.training.local import learning_rate

values = st.floats(-MAX_ABS, MAX_ABS, width=32)
updates = st.lists(
    st.tuples(arrays(np.float32, (5,), elements=values), st.integers(1, 1 << 20)), min_size=1, max_size=12
)


def total_of(items):
    total = FixedPointSum({"a": (5,)})
    for x, weight in items:
        total.add({"a": x}, weight)
    return total


@given(updates, st.randoms(use_true_random=False), st.data())
def test_any_order_and_any_grouping_give_the_same_bytes(items, random, data):
    expected = total_of(items).mean()["a"].tobytes()
    shuffled = list(items)
    random.shuffle(shuffled)
    assert total_of(shuffled).mean()["a"].tobytes() == expected
    cut = data.draw(st.integers(1, len(items)))
    left, right = total_of(shuffled[:cut]), total_of(shuffled[cut:])
    left.merge(right)
    assert left.mean()["a"].tobytes() == expected


@given(updates)
def test_the_mean_lies_within_its_updates_and_near_the_exact_one(items):
    mean = total_of(items).mean()["a"].astype(np.float64)
    weights = np.array([w for _, w in items], np.float64)
    exact = np.stack([x for x, _ in items]).astype(np.float64).T @ weights / weights.sum()
    np.testing.assert_allclose(mean, exact, atol=2**-24, rtol=2**-22)


@given(
    st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_rows_fold_in_any_order(sets, random):
    rng = np.random.default_rng(0)
    items = [(np.array(sorted(s)), rng.normal(size=(len(s), 3)).astype(np.float32)) for s in sets]

    def folded(order):
        rows = RowSum(4, 3)
        for index, part in order:
            rows.add("v", index, part)
        return rows.mean().tobytes(), rows.count_K.tolist()

    shuffled = list(items)
    random.shuffle(shuffled)
    assert folded(shuffled) == folded(items)


@settings(max_examples=50)
@given(arrays(np.float32, (6, 2, 3), elements=st.floats(-8, 8, width=32)), arrays(np.bool_, (6, 2)))
def test_the_cumulative_prototype_is_the_mean_of_the_rounds_in_which_the_class_was_seen(v_TKD, seen_TK):
    vbar_KD, rounds_K = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    for v_KD, seen_K in zip(v_TKD, seen_TK, strict=True):
        vbar_KD, rounds_K = cumulative(vbar_KD, rounds_K, v_KD, seen_K, QqrConfig())
    assert rounds_K.tolist() == seen_TK.sum(axis=0).tolist()
    for k in range(2):
        expected = v_TKD[seen_TK[:, k], k].mean(axis=0) if seen_TK[:, k].any() else np.zeros(3)
        np.testing.assert_allclose(vbar_KD[k], expected, atol=1e-5)


@given(st.integers(1, 200), st.floats(0.5, 1.0))
def test_the_learning_rate_falls_from_its_initial_value_and_never_below_its_floor(round_, decay):
    rates = [learning_rate(0.08, decay, 0.001, r) for r in range(1, round_ + 1)]
    assert rates[0] == 0.08
    assert all(a >= b >= 0.001 for a, b in itertools.pairwise(rates))
