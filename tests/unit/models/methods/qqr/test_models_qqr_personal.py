"""QQR's ``personal``: what a device keeps for its own predictions, and how they use it."""

import numpy as np
import pytest
import torch

from models.contract import ClientContext
from models.methods.qqr import QqrConfig
from models.methods.qqr.client import make_client
from models.methods.qqr.personal import blended
from models.methods.qqr.prototyper import make_prototyper
from models.methods.qqr.prototypes import rounds_name, values_name
from models.tensors import flatten
from tests.support.methods.qqr_cases import task, windows, with_prototypes


def learn(the_task, state, private=None, round_=1, some=None):
    context = ClientContext(the_task, "d", round_, 0)
    return make_client().train(context, some or windows(), state, private or {})


def predicted(model):
    some = windows()
    with torch.inference_mode():
        return model(torch.ones(12, 2), *(torch.from_numpy(some.x[name]) for name in ("acc", "gyro")))[1]


@pytest.mark.parametrize("personal", ["head", "prototypes", "both"])
def test_keeping_something_changes_nothing_of_what_is_sent(personal):
    state = with_prototypes(task())
    plain, kept = learn(task(), state), learn(task(personal=personal), state)
    assert plain.private == {}
    assert kept.tensors.keys() == plain.tensors.keys()
    assert all(np.array_equal(kept.tensors[name], t) for name, t in plain.tensors.items())
    again = learn(task(personal=personal), state, kept.private)
    assert all(np.array_equal(again.tensors[name], t) for name, t in plain.tensors.items())
    parts = {name.split("/")[0] for name in kept.private}
    assert parts == {"head": {"head"}, "prototypes": {"prototypes"}, "both": {"head", "prototypes"}}[personal]


def test_the_own_head_is_the_one_that_training_left():
    state = with_prototypes(task())
    result = learn(task(personal="head"), state)
    for name, tensor in state["head"].items():
        np.testing.assert_allclose(result.private[name], tensor + result.tensors[name], atol=1e-6)


def test_the_own_head_outlives_a_round_in_which_nothing_trained():
    state = with_prototypes(task())
    private = learn(task(personal="head"), state).private
    waiting = task(personal="head", missing_prototype="wait")
    state["prototypes/gyro"][rounds_name("gyro")] = np.zeros(3, np.float32)
    some = windows()
    some.present_BM[:, 1] = False
    kept = learn(waiting, state, private, some=some)
    assert kept.metrics["windows"] == 0
    assert all(np.array_equal(kept.private[name], tensor) for name, tensor in private.items())


def test_own_prototypes_are_the_cumulative_mean_of_the_devices_own_unquantized():
    the_task = task(personal="prototypes", upload="prototypes", prototype_bits=2, normalise=False)
    state = with_prototypes(the_task)
    first = learn(the_task, state)
    values, rounds = values_name("acc"), rounds_name("acc")
    fine = learn(task(upload="prototypes", prototype_bits=32, normalise=False), state).tensors[values]
    np.testing.assert_allclose(first.private[values], fine, rtol=1e-6)
    assert first.private[rounds].tolist() == [1, 1, 1]
    # next round only class 0 occurs: the others keep theirs
    some = windows()
    some.y_B[:] = 0
    second = learn(the_task, state, first.private, 2, some)
    assert second.private[rounds].tolist() == [2, 1, 1]
    assert np.array_equal(second.private[values][1:], first.private[values][1:])
    alone = learn(the_task, state, {}, 2, some).private[values][0]
    np.testing.assert_allclose(second.private[values][0], (first.private[values][0] + alone) / 2, rtol=1e-5)


def test_a_device_without_torch_keeps_its_prototypes_too():
    the_task = task(personal="both")
    some = windows()
    z = {name: np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32) for name in ("acc", "gyro")}
    context = ClientContext(the_task, "d", 1, 0)
    result = make_prototyper().summarise(context, some, z, {})
    assert {name.split("/")[0] for name in result.private} == {"prototypes"}
    assert result.private[rounds_name("gyro")].tolist() == [1, 1, 1]


def test_the_blend_mixes_what_both_have_and_takes_what_only_one_has():
    the_task = task()
    state = with_prototypes(the_task)
    values, rounds = values_name("acc"), rounds_name("acc")
    state["prototypes/acc"][rounds] = np.float32([5, 0, 3])
    own = {
        values: np.full((3, 4), 2, np.float32),
        rounds: np.float32([1, 1, 0]),
    }
    config = QqrConfig(personal="prototypes", personal_share=0.25)
    table = blended(config, state, own)["prototypes/acc"]
    assert table[values].tolist() == [[6.5, 0.5, 0.5, 0.5], [2, 2, 2, 2], [0, 0, 8, 0]]
    assert table[rounds].tolist() == [5, 1, 3]
    assert blended(config, state, own)["prototypes/gyro"] is state["prototypes/gyro"]
    assert blended(QqrConfig(), state, own) == state


def test_the_share_decides_between_the_global_head_and_the_own_one():
    state = with_prototypes(task())
    client, private = make_client(), learn(task(personal="head"), state).private
    ours = predicted(client.inference_model(task(), state))
    none, whole = (
        client.inference_model(
            task(), blended(QqrConfig(personal="head", personal_share=share), state, private)
        )
        for share in (0.0, 1.0)
    )
    own_state = state | {"head": {name: private[name] for name in state["head"]}}
    assert torch.equal(predicted(none), ours)
    assert torch.equal(predicted(whole), predicted(client.inference_model(task(), own_state)))
    assert not torch.equal(predicted(whole), ours)


def test_what_does_not_fit_stays_global():
    the_task = task(personal="both")
    state = with_prototypes(the_task)
    private = learn(the_task, state).private
    for name in ("head/fc1.weight", values_name("acc")):
        broken = private | {name: private[name][:1]}
        blob = name.rpartition("/")[0]
        assert blended(QqrConfig(personal="both"), state, broken)[blob] is state[blob]
    lacking = {name: t for name, t in private.items() if name != "head/fc2.bias"}
    assert blended(QqrConfig(personal="both"), state, lacking)["head"] is state["head"]
    again = learn(the_task, state, private | {values_name("acc"): np.ones((9, 4), np.float32)})
    assert again.private[rounds_name("acc")].tolist() == [1, 1, 1]
    assert all(np.isfinite(t).all() for t in flatten(blended(QqrConfig(), state, private)).values())
