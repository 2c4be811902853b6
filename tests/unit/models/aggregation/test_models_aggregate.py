import math
import time
import tracemalloc

import numpy as np
import pytest

from models.aggregation.exact_sums import MAX_ABS, FixedPointSum, RowSum
from models.aggregation.update_norms import coarseness_of, magnitudes, sum_of_squares
from protocol.errors import Reason, Refused
from protocol.frames.tensors import Codec, decode, encode


def test_the_mean_is_the_weighted_mean_within_half_a_step():
    rng = np.random.default_rng(0)
    updates = [(rng.normal(0, 0.1, (3, 4)).astype(np.float32), w) for w in (1, 5, 2)]
    total = FixedPointSum({"a": (3, 4)})
    for x, weight in updates:
        total.add({"a": x}, weight)
    expected = sum(x.astype(np.float64) * w for x, w in updates) / 8
    np.testing.assert_allclose(total.mean()["a"], expected, atol=2**-25 + 1e-8)


def test_each_tensor_is_averaged_over_those_who_sent_it():
    total = FixedPointSum({"a": (1,), "b": (1,), "c": (1,)})
    total.add({"a": np.float32([1]), "b": np.float32([1])})
    total.add({"a": np.float32([3])})
    mean = total.mean()
    assert mean["a"] == 2
    assert mean["b"] == 1
    assert "c" not in mean
    assert total.weights == {"a": 2, "b": 1, "c": 0}


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (np.float32([1, np.nan]), Reason.NON_FINITE),
        (np.float32([-np.inf, 1]), Reason.NON_FINITE),
        (np.float32([1, MAX_ABS * 1.01]), Reason.OUT_OF_BOUNDS),
        (np.float32([-MAX_ABS * 1.01, 1]), Reason.OUT_OF_BOUNDS),
        (np.float32([1, 2, 3]), Reason.WRONG_TENSORS),
        (np.float32([[1, 2]]), Reason.WRONG_TENSORS),
    ],
)
def test_a_bad_tensor_is_refused_by_name_and_nothing_of_the_update_is_added(tensor, reason):
    total = FixedPointSum({"good": (1,), "layer/weight": (2,)})
    with pytest.raises(Refused, match="layer/weight") as caught:
        total.add({"good": np.float32([7]), "layer/weight": tensor})
    assert caught.value.reason is reason
    assert total.mean() == {}


def test_tensors_added_together_give_the_sums_of_each_alone():
    shapes = {"a": (3, 4), "b": (5,), "large": (1 << 16, 2), "c": (), "d": (0, 2), "e": (7, 2, 2)}
    rng = np.random.default_rng(1)
    whole, alone = (
        FixedPointSum(shapes),
        {name: FixedPointSum({name: shape}) for name, shape in shapes.items()},
    )
    for weight in (1, 3):
        update = {name: rng.normal(0, 2, shape).astype(np.float32) for name, shape in shapes.items()}
        update["e"] = update["e"].transpose(1, 2, 0).copy().transpose(2, 0, 1)
        whole.add(update, weight)
        for name, tensor in update.items():
            alone[name].add({name: tensor}, weight)
    for name, tensor in whole.mean().items():
        assert tensor.tobytes() == alone[name].mean()[name].tobytes(), name
    assert set(whole.weights.values()) == {4}


def test_magnitudes_of_small_tensors_are_those_of_each_alone():
    rng = np.random.default_rng(2)
    tensors = {
        f"head/{i}": rng.normal(0, 1, size).astype(np.float32)
        for i, size in enumerate((5, 900, 70_000, 1, 33))
    }
    size = sum(tensor.size for tensor in tensors.values())
    wanted = math.sqrt(math.fsum(sum_of_squares(tensor) for tensor in tensors.values()) / size)
    assert magnitudes(tensors) == {"head": wanted}


def test_an_unknown_tensor_is_refused_by_name():
    with pytest.raises(Refused, match="stranger"):
        FixedPointSum({"a": (1,)}).add({"stranger": np.float32([1])})


@pytest.mark.parametrize("weight", [0, -1, 2**28 + 1])
def test_a_weight_that_the_sum_cannot_hold_is_refused(weight):
    with pytest.raises(Refused, match=r"'a'.*weight"):
        FixedPointSum({"a": (1,)}).add({"a": np.float32([1])}, weight)


def test_at_the_bounds_nothing_overflows_and_beyond_them_it_is_refused():
    total = FixedPointSum({"a": (2,)})
    extreme = np.float32([MAX_ABS, -MAX_ABS])
    half = total.max_weight // 2
    total.add({"a": extreme}, half)
    other = FixedPointSum({"a": (2,)})
    other.add({"a": extreme}, total.max_weight - half)
    total.merge(other)
    np.testing.assert_array_equal(total.mean()["a"], extreme)
    with pytest.raises(Refused) as caught:
        total.add({"a": extreme})
    assert caught.value.reason is Reason.OUT_OF_BOUNDS
    with pytest.raises(Refused):
        total.merge(other)
    np.testing.assert_array_equal(total.mean()["a"], extreme)


def test_sums_of_different_models_do_not_merge():
    with pytest.raises(ValueError, match="merged"):
        FixedPointSum({"a": (2,)}).merge(FixedPointSum({"a": (3,)}))


def test_scalars_empty_tensors_and_views_are_taken():
    total = FixedPointSum({"scalar": (), "empty": (0, 3), "view": (2, 3)})
    view = np.arange(6, dtype=np.float32).reshape(3, 2).T
    total.add({"scalar": np.array(2, np.float32), "empty": np.zeros((0, 3), np.float32), "view": view})
    mean = total.mean()
    assert mean["scalar"] == 2
    assert mean["empty"].shape == (0, 3)
    np.testing.assert_array_equal(mean["view"], view)


def test_a_million_parameters_fold_in_little_time_and_memory_however_many_updates():
    x = {"a": np.random.default_rng(0).normal(0, 0.01, (1000, 1000)).astype(np.float32)}
    total = FixedPointSum({"a": (1000, 1000)})
    total.add(x)
    times = []
    tracemalloc.start()
    try:
        for _ in range(20):
            start = time.process_time()
            total.add(x)
            times.append(time.process_time() - start)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5e6  # the accumulator itself was there before; a tensor is 4 MB
    assert min(times) < 0.1  # about 1 ms on an idle machine


def test_rows_are_averaged_over_those_who_have_them():
    rows = RowSum(3, 2)
    rows.add("v", np.array([0, 2]), np.float32([[1, 1], [4, 4]]))
    rows.add("v", np.array([2]), np.float32([[2, 0]]))
    np.testing.assert_array_equal(rows.mean(), [[1, 1], [0, 0], [3, 2]])
    assert rows.count_K.tolist() == [1, 0, 2]


def test_sums_of_no_rows_merge_into_one_of_no_rows():
    none = RowSum(0, 4)
    none.merge(RowSum(0, 4))
    assert none.mean().shape == (0, 4)


@pytest.mark.parametrize(
    ("index", "values"),
    [
        ([0, 0], np.ones((2, 2))),
        ([3], np.ones((1, 2))),
        ([-1], np.ones((1, 2))),
        ([0], np.ones((1, 3))),
        ([0, 1], np.ones((1, 2))),
        ([0], np.full((1, 2), np.nan)),
    ],
)
def test_bad_rows_are_refused_by_name_and_change_nothing(index, values):
    rows = RowSum(3, 2)
    with pytest.raises(Refused, match="prototypes/x/values"):
        rows.add("prototypes/x/values", np.array(index), values.astype(np.float32))
    assert rows.count_K.tolist() == [0, 0, 0]
    assert not rows.mean().any()


def test_merged_rows_are_those_of_one_sum():
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=(2, 4)).astype(np.float32) for _ in range(3)]
    one, left, right = (RowSum(2, 4) for _ in range(3))
    for i, part in enumerate(parts):
        one.add("v", np.array([0, 1]), part)
        (left if i else right).add("v", np.array([0, 1]), part)
    left.merge(right)
    assert left.mean().tobytes() == one.mean().tobytes()
    with pytest.raises(ValueError, match="merged"):
        left.merge(RowSum(3, 4))


def test_steps_of_running_statistics_lose_no_more_than_eight_bits_do():
    """A channel whose variance changes little beside another one's keeps its change."""
    change = np.geomspace(1e-2, 1, 64).astype(np.float32)
    name = "encoder/acc/norm.running_var"
    coarse = coarseness_of(name, change, 2.5)
    lost = np.abs(decode(encode(change, Codec.STEPS, coarseness=coarse)) - change).max()
    assert lost <= np.abs(decode(encode(change, Codec.INT8)) - change).max() * 4
    assert (
        coarse
        < coarseness_of("encoder/acc/norm.weight", change, 2.5)
        < coarseness_of("head/w", change[None], 2.5)
    )
