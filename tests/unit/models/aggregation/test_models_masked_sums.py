"""A fold's partial result as a vector of a ring: its order, its bounds, and what is no sum."""

import numpy as np
import pytest

from models.aggregation.exact_sums import FixedPointSum, RowSum
from models.aggregation.masked_sums import absorb_vector, layout_of, unsummed_part, vector_of
from models.aggregation.partial_results import Flags, PartwiseFold
from models.aggregation.robust import Coordinatewise, median
from protocol.errors import Misconfigured, Refused
from protocol.secure_aggregation.ring import to_numbers, to_words
from protocol.tasks.folding import SecureAggregation

OPTIONS = SecureAggregation(
    ring_bits=32, fraction_bits=4, bound=2.0, weights="samples", max_weight=3, min_devices=3
)
SHAPES = {"b": (2,), "a": (1, 2)}


class Fold(PartwiseFold):
    def __init__(self, *, robust=False):
        self.deltas = Coordinatewise(SHAPES, 8.0, median) if robust else FixedPointSum(SHAPES, 8.0)
        self.rows, self.flags = RowSum(3, 2, 8.0), Flags(3)

    def parts(self):
        return {"rows": self.rows, "flags": self.flags, "deltas": self.deltas}

    def fold(self, value, weight=1):
        self.deltas.add({"a": np.full((1, 2), value, np.float32)}, weight)
        self.rows.add("p", np.array([1]), np.full((1, 2), -value, np.float32))
        self.flags.mark(np.array([False, True, True]))
        return self

    def close(self):
        return {"all": self.deltas.mean() | {"p": self.rows.mean()}}


def test_the_order_follows_from_names_alone():
    layout = layout_of(Fold())
    assert [entry.where for entry in layout.entries] == [
        "deltas|totals",
        "deltas|weights",
        "flags|flags_K",
        "rows|count_K",
        "rows|total_KD",
    ]
    assert layout.size == 4 + 2 + 3 + 3 + 6
    numbers = to_numbers(vector_of(Fold().fold(0.5, 3), layout, OPTIONS), 32).tolist()
    assert numbers == [24, 24, 0, 0, 3, 0, 0, 1, 1, 0, 1, 0, 0, 0, -8, -8, 0, 0]


def test_a_sum_of_vectors_closes_as_the_fold_of_all():
    layout, plain, total = layout_of(Fold()), Fold(), None
    for value, weight in ((0.5, 1), (-1.25, 3), (2.0, 2)):
        plain.fold(value, weight)
        vector = vector_of(Fold().fold(value, weight), layout, OPTIONS)
        total = vector if total is None else total + vector
    closed = Fold()
    absorb_vector(closed, layout, OPTIONS, total, 3)
    assert closed.flags.flags_K.tolist() == [False, True, True]
    for name, tensor in plain.close()["all"].items():
        assert closed.close()["all"][name].tobytes() == tensor.tobytes()


@pytest.mark.parametrize(
    ("value", "weight", "words"),
    [
        (0.5, 4, r"deltas\|weights: an element is beyond what 1 devices can give \(at most 3\)"),
        (6.25, 1, r"deltas\|totals: an element is beyond what 1 devices can give \(at most 96\)"),
        (0.53125, 1, r"deltas\|totals: a value is no multiple of 2\*\*-4; it was not rounded"),
    ],
)
def test_a_device_does_not_mask_what_is_beyond_the_tasks_numbers(value, weight, words):
    with pytest.raises(Refused, match=words):
        vector_of(Fold().fold(value, weight), layout_of(Fold()), OPTIONS)


@pytest.mark.parametrize(
    ("place", "number", "words"),
    [
        (0, 3 * 3 * 32 + 1, r"deltas\|totals: an element is beyond what 3 devices can give \(at most 288\)"),
        (0, -(3 * 3 * 32) - 1, r"deltas\|totals"),
        (4, 10, r"deltas\|weights: an element is beyond what 3 devices can give \(at most 9\)"),
        (4, -1, r"deltas\|weights"),
        (6, -1, r"flags\|flags_K"),
        (9, 10, r"rows\|count_K"),
    ],
)
def test_a_sum_beyond_what_honest_devices_give_is_refused_and_their_largest_is_not(place, number, words):
    layout = layout_of(Fold())
    numbers = np.zeros(layout.size, np.int64)
    numbers[place] = number - int(np.sign(number)) if number != -1 else 0
    absorb_vector(Fold(), layout, OPTIONS, to_words(numbers, 32), 3)
    numbers[place] = number
    with pytest.raises(Refused, match=words):
        absorb_vector(Fold(), layout, OPTIONS, to_words(numbers, 32), 3)


def test_a_robust_part_is_no_sum():
    assert unsummed_part(Fold()) == ""
    assert unsummed_part(Fold(robust=True)) == "deltas"
    with pytest.raises(Misconfigured, match="part 'deltas' of the fold: its fold is not a sum"):
        layout_of(Fold(robust=True))
