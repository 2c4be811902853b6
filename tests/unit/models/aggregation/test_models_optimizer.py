"""The server's optimizer: the published algorithm, what it touches, and what it refuses."""

import tracemalloc

import numpy as np
import pytest

from models import registry
from models.aggregation.server_optimizer import (
    FIRST,
    MAX_VALUE,
    SECOND,
    model_of,
    moment_name,
    rejoined,
    stepped,
)
from models.contract import Blobs, Profile
from models.tensors import flatten
from protocol.errors import Misconfigured
from protocol.frames.headers import BlobHeader
from protocol.tasks.folding import Aggregator
from tests.support.methods.contract_cases import task_of

W = "encoder/acc/w"
PARTS = ("encoder", "head")


def state_of(**values: float | list[float]) -> Blobs:
    """``acc`` and ``gyro`` are encoders' tensors; others are of the head."""
    found: Blobs = {}
    for key, value in values.items():
        blob = f"encoder/{key}" if key in {"acc", "gyro"} else "head"
        name = f"{blob}/w" if blob != "head" else f"head/{key}"
        found.setdefault(blob, {})[name] = np.atleast_1d(np.float32(value))
    return found


def value(state: Blobs, name: str) -> float:
    return float(flatten(state)[name][0])


# Algorithm 2 of the paper, worked by hand with numbers whose roots are rational.
# fedadam, beta1 1/2, beta2 3/4, tau 1, lr 2.1; from 1, D = 2.75, then D = 1.890625:
#   m 1.375, v 3/4 + 7.5625/4 = 2.640625 = 1.625^2, step 2.1 * 1.375 / 2.625 = 1.1
#   m 1.6328125, v 2.87408447 = 1.6953125^2, step 2.1 * 1.6328125 / 2.6953125 = 1.27217391
# fedadagrad, the same with lr 2; from 1, D = 0.75, then D = 3:
#   m 0.375, v 1 + 9/16 = 1.5625 = 1.25^2, step 2 * 0.375 / 2.25 = 0.33333333
#   m 1.6875, v 1.5625 + 9 = 10.5625 = 3.25^2, step 2 * 1.6875 / 4.25 = 0.79411765
# fedyogi, the same with lr 2; from 1, D = 3.75 (D^2 above v: v grows), then D = 2 (below: v shrinks):
#   m 1.875, v 1 + 14.0625/4 = 4.515625 = 2.125^2, step 2 * 1.875 / 3.125 = 1.2
#   m 1.9375, v 4.515625 - 4/4 = 3.515625 = 1.875^2, step 2 * 1.9375 / 2.875 = 1.34782609
BY_HAND = {
    "fedadagrad": (2.0, (0.75, 3.0), (1.33333333, 2.12745098), (0.375, 1.6875), (1.5625, 10.5625)),
    "fedadam": (2.1, (2.75, 1.890625), (2.1, 3.37217391), (1.375, 1.6328125), (2.640625, 2.87408447)),
    "fedyogi": (2.0, (3.75, 2.0), (2.2, 3.54782609), (1.875, 1.9375), (4.515625, 3.515625)),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_two_rounds_are_those_worked_by_hand(kind):
    lr, deltas, models, firsts, seconds = BY_HAND[kind]
    aggregator = Aggregator(kind=kind, lr=lr, beta1=0.5, beta2=0.75, tau=1.0)
    state = state_of(acc=1.0)
    for delta, model, first, second in zip(deltas, models, firsts, seconds, strict=True):
        state = stepped(aggregator, PARTS, state, state_of(acc=value(state, W) + delta))
        assert value(state, W) == pytest.approx(model, rel=1e-6)
        assert value(state, moment_name(FIRST, W)) == pytest.approx(first, rel=1e-6)
        assert value(state, moment_name(SECOND, W)) == pytest.approx(second, rel=1e-6)


def test_fedavg_with_momentum_goes_on_where_the_rounds_before_went():
    aggregator, state = Aggregator(momentum=0.5), state_of(acc=1.0, fc=2.0)
    for delta, model, first in ((2.0, 3.0, 2.0), (1.0, 5.0, 2.0), (-1.0, 5.0, 0.0)):
        state = stepped(aggregator, PARTS, state, state_of(acc=value(state, W) + delta, fc=2.0))
        assert (value(state, W), value(state, moment_name(FIRST, W))) == (model, first)
    assert value(state, "head/fc") == 2.0
    assert {name for name in flatten(state) if name.startswith("optimizer/")} == {moment_name(FIRST, W)}
    plain = stepped(Aggregator(), PARTS, state, state_of(acc=6.0))
    assert set(flatten(plain)) == {W}


def test_yogi_forgets_a_large_step_more_slowly_than_adam():
    found = {}
    for kind in ("fedadam", "fedyogi"):
        aggregator, state = Aggregator(kind=kind), state_of(acc=0.0)
        for delta in (3.0, *[0.01] * 20):
            state = stepped(aggregator, PARTS, state, state_of(acc=value(state, W) + delta))
        found[kind] = value(state, moment_name(SECOND, W))
    assert found["fedyogi"] > 1.15 * found["fedadam"]


def test_fedavg_is_what_the_fold_says_and_leaves_no_moments_behind():
    before, after = state_of(acc=1.0, fc=2.0), state_of(acc=1.5, fc=2.5)
    adam = stepped(Aggregator(kind="fedadam"), PARTS, before, after)
    assert set(adam) - set(before)
    plain = stepped(Aggregator(), PARTS, adam, after)
    assert plain == after
    assert all(plain[name] is after[name] for name in after)


def test_what_nobody_moved_stays_with_its_moments():
    aggregator = Aggregator(kind="fedadam")
    start = state_of(acc=1.0, gyro=1.0)
    first = stepped(aggregator, PARTS, start, state_of(acc=1.5, gyro=1.5))
    second = stepped(aggregator, PARTS, first, {**model_of(first), **state_of(acc=3.0)})
    gyro = [name for name in flatten(first) if "gyro" in name]
    assert len(gyro) == 3
    for name in gyro:
        assert flatten(second)[name] is flatten(first)[name]
    assert value(second, W) != value(first, W)


def test_other_parts_and_running_statistics_become_what_the_fold_says():
    before = state_of(fc=1.0) | {
        "head": {
            "head/fc": np.ones(2, np.float32),
            "head/bn.running_mean": np.ones(2, np.float32),
            "head/bn.running_var": np.ones(2, np.float32),
        },
        "prototypes/acc": {"prototypes/acc/values": np.ones(2, np.float32)},
    }
    after = {blob: {name: x + np.float32(0.5) for name, x in part.items()} for blob, part in before.items()}
    made = stepped(Aggregator(kind="fedyogi"), PARTS, before, after)
    flat, folded = flatten(made), flatten(after)
    for name in ("head/bn.running_mean", "head/bn.running_var", "prototypes/acc/values"):
        assert flat[name] is folded[name]
    assert flat["head/fc"].tolist() != folded["head/fc"].tolist()
    assert {name for name in flat if name.startswith("optimizer/")} == {
        "optimizer/first.head/fc",
        "optimizer/second.head/fc",
    }


def test_a_model_that_was_changed_after_the_fold_gets_its_moments_back():
    made = stepped(Aggregator(kind="fedadam"), PARTS, state_of(acc=1.0), state_of(acc=2.0))
    trained = {"head": {"head/fc": np.zeros(1, np.float32)}, **model_of(made)}
    again = rejoined(trained, made)
    assert model_of(again) == trained
    assert set(again) - set(trained) == set(made) - set(model_of(made))


@pytest.mark.parametrize("name", sorted(registry.methods()))
def test_every_method_has_parts_to_step_and_no_route_with_moments(name):
    spec = registry.method(name)
    task = task_of(spec)
    before = spec.client().initial(task, 0)
    after = {blob: {n: x + np.float32(0.01) for n, x in part.items()} for blob, part in before.items()}
    made = stepped(Aggregator(kind="fedadam"), spec.optimised, before, after)
    moments = set(made) - set(before)
    assert moments
    assert {blob.split("/", 1)[0] for blob in moments} == {"optimizer"}
    assert {BlobHeader(name=blob).name for blob in made} == set(made), "they travel to the registry"
    for modalities in (task.modality_names, *[(one,) for one in task.modality_names]):
        assert not moments & set(spec.server().route(task, Profile(modalities)))
        assert not moments & set(spec.server().prototype_route(task, modalities))
    assert set(model_of(made)) == set(before)


def test_absurd_steps_and_names_are_refused_in_words():
    before, after = state_of(acc=0.9 * MAX_VALUE), state_of(acc=MAX_VALUE)
    with pytest.raises(Misconfigured, match=r"aggregator\.lr = 100 with tau = 0\.001.*'encoder/acc/w'"):
        stepped(Aggregator(kind="fedadam", lr=100, beta2=0.99999999999999), PARTS, before, after)
    with pytest.raises(Misconfigured, match=r"aggregator\.kind = \"fedyogi\".*no part.*decoder"):
        stepped(Aggregator(kind="fedyogi"), ("decoder",), before, after)
    blob = "encoder/" + "a" * 64
    long = {blob: {f"{blob}/{'w' * 50}": np.ones(1, np.float32)}}
    grown = {blob: {f"{blob}/{'w' * 50}": np.zeros(1, np.float32)}}
    with pytest.raises(Misconfigured, match="at most 128 can be stored"):
        stepped(Aggregator(kind="fedadam"), PARTS, long, grown)
    with pytest.raises(Misconfigured, match="beyond"):
        stepped(Aggregator(kind="fedadam"), PARTS, state_of(acc=1.0), state_of(acc=float("nan")))


def test_the_smallest_settings_give_finite_numbers():
    least = Aggregator(kind="fedadam", tau=1e-300, beta1=0.0, beta2=0.0, lr=1e-3)
    state = state_of(acc=[0.0, 0.0])
    for delta in ([1e-30, 0.0], [-1e-30, 1e-38]):
        after = {"encoder/acc": {W: flatten(state)[W] + np.float32(delta)}}
        state = stepped(least, PARTS, state, after)
        assert np.isfinite(flatten(state)[W]).all()


@pytest.mark.parametrize("kind", ["fedadam", "fedyogi"])
def test_moments_of_an_absurd_update_stay_numbers_and_fade(kind):
    options = Aggregator(kind=kind, lr=0.01, beta1=0.0, beta2=0.0, tau=1.0)
    before = state_of(acc=0.0)
    wild = stepped(options, PARTS, before, state_of(acc=1e30))
    assert all(np.isfinite(tensor).all() for tensor in flatten(wild).values())
    calm = stepped(options, PARTS, wild, {**model_of(wild), **state_of(acc=value(wild, W) + 1.0)})
    assert np.isfinite(value(calm, moment_name(SECOND, W)))


def test_a_large_tensor_needs_little_besides_its_moments():
    size = 1_000_000
    before = {"head": {"head/w": np.zeros(size, np.float32)}}
    after = {"head": {"head/w": np.linspace(-1, 1, size, dtype=np.float32)}}
    tracemalloc.start()
    try:
        made = stepped(Aggregator(kind="fedadam"), PARTS, before, after)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5.5 * 4 * size, "version, two moments, and the zeros that the first of them begins with"
    ends = {"head": {"head/w": np.float32([-1, 1])}}
    small = stepped(Aggregator(kind="fedadam"), PARTS, {"head": {"head/w": np.zeros(2, np.float32)}}, ends)
    assert flatten(made)["head/w"][[0, -1]].tolist() == flatten(small)["head/w"].tolist()


def test_moments_that_underflow_with_a_tiny_tau_are_named():
    tiny = Aggregator(kind="fedadam", tau=1e-300, beta2=0.0)
    state = stepped(tiny, PARTS, state_of(acc=[0.0, 0.0]), {"encoder/acc": {W: np.float32([1e-25, 0.0])}})
    held = flatten(state)[W]
    with pytest.raises(Misconfigured, match="tau = 1e-300"):
        stepped(tiny, PARTS, state, {"encoder/acc": {W: held + np.float32([0.0, 1.0])}})
