"""The server's optimizer: bounded steps, the same bytes in any order and after any restart."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.aggregation.server_optimizer import model_of, stepped
from models.contract import Blobs
from models.tensors import flatten, npz_bytes, read_npz, unflatten
from protocol.tasks.folding import Aggregator

SHAPES = {"encoder/a/w": (2, 3), "encoder/b/w": (4,), "head/w": (3,), "head/bn.running_mean": (2,)}
PARTS = ("encoder", "head")
VALUES = st.floats(-8, 8, width=32)
AGGREGATORS = st.builds(
    Aggregator,
    kind=st.sampled_from(["fedadagrad", "fedadam", "fedyogi"]),
    lr=st.sampled_from([0.001, 0.1, 1.0]),
    beta1=st.sampled_from([0.0, 0.5, 0.9]),
    # not 0: with an old first moment and no memory of the second, a value that rests is absurd (and refused)
    beta2=st.sampled_from([0.5, 0.9, 0.99]),
    tau=st.sampled_from([1e-9, 1e-3, 1.0]),
)
ALL = AGGREGATORS | st.builds(Aggregator, momentum=st.sampled_from([0.3, 0.9]))


def deltas_of(names) -> st.SearchStrategy[dict[str, np.ndarray]]:
    return st.fixed_dictionaries({name: arrays(np.float32, SHAPES[name], elements=VALUES) for name in names})


ROUNDS = st.lists(
    st.sampled_from([[*SHAPES], ["encoder/a/w", "head/w"], ["encoder/b/w"]]).flatmap(deltas_of),
    min_size=1,
    max_size=5,
)


def start() -> Blobs:
    return unflatten({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})


def folded(state: Blobs, deltas) -> Blobs:
    model = flatten(model_of(state))
    return unflatten(model | {name: model[name] + delta for name, delta in deltas.items()})


def as_bytes(state: Blobs) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}


@settings(deadline=None, max_examples=60)
@given(ALL, ROUNDS, st.integers(0, 4))
def test_a_version_that_was_written_and_read_goes_on_with_the_same_bytes(
    tmp_path_factory, aggregator, rounds, cut
):
    file = tmp_path_factory.getbasetemp() / "version.npz"
    through, again = start(), start()
    for number, deltas in enumerate(rounds):
        if number == cut:
            file.write_bytes(npz_bytes(flatten(again)))
            again = unflatten(read_npz(file))
        through = stepped(aggregator, PARTS, through, folded(through, deltas))
        again = stepped(aggregator, PARTS, again, folded(again, deltas))
    assert as_bytes(again) == as_bytes(through)


@settings(deadline=None, max_examples=60)
@given(ALL, ROUNDS, st.randoms(use_true_random=False))
def test_the_order_of_blobs_changes_no_byte(aggregator, rounds, random):
    straight, mixed = start(), start()
    for deltas in rounds:
        straight = stepped(aggregator, PARTS, straight, folded(straight, deltas))
        before, after = list(mixed.items()), list(folded(mixed, deltas).items())
        random.shuffle(before)
        random.shuffle(after)
        mixed = stepped(aggregator, PARTS, dict(before), dict(after))
    assert as_bytes(mixed) == as_bytes(straight)


@settings(deadline=None, max_examples=100)
@given(AGGREGATORS, deltas_of(["encoder/a/w", "head/w"]))
def test_a_first_step_goes_where_the_devices_went_and_no_further_than_lr_allows(aggregator, deltas):
    made = flatten(stepped(aggregator, PARTS, start(), folded(start(), deltas)))
    # |m| / (sqrt(v) + tau) with m = (1 - beta1) D, and v at least (1 - beta2) D^2: Adam's always is, Yogi's
    # where D is above tau; where it is not, tau alone keeps the quotient below 1 - beta1
    longest = aggregator.lr * (1 - aggregator.beta1) / math.sqrt(1 - aggregator.beta2)
    for name, delta in deltas.items():
        assert (np.sign(made[name]) * np.sign(delta) >= 0).all()
        assert (np.abs(made[name]) <= longest * (1 + 1e-6)).all()


@settings(deadline=None, max_examples=60)
@given(ALL, ROUNDS)
def test_statistics_are_the_folds_and_second_moments_are_never_negative(aggregator, rounds):
    state = start()
    for deltas in rounds:
        after = folded(state, deltas)
        state = stepped(aggregator, PARTS, state, after)
        name = "head/bn.running_mean"
        assert flatten(state)[name].tobytes() == flatten(after)[name].tobytes()
        for key, tensor in flatten(state).items():
            assert np.isfinite(tensor).all()
            assert not key.startswith("optimizer/second") or (tensor >= 0).all()
