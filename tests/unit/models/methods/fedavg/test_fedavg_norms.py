"""FedBN: a device's norms are its own, in training and in its predictions, and what the coordinator has."""

from dataclasses import replace

import numpy as np
import pytest

from models.contract import Blobs, Tensors, WindowSet
from models.methods.fedavg import METHOD
from models.methods.fedavg.personal import blended
from models.multimodal.inference import probabilities
from models.registry import method
from models.tensors import batch_norms, flatten
from models.training.evaluation import judge
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.network import Encoder
from tests.support.fedavg_cases import folded, initial, task, train, update, windows, without
from tests.support.methods import contract_cases

NORM = {
    f"encoder/{name}/convolutions.1.{part}" for name in ("acc", "gyro") for part in ("weight", "bias")
} | {f"encoder/{name}/convolutions.1.running_{part}" for name in ("acc", "gyro") for part in ("mean", "var")}


def norms_of(state: Blobs) -> Tensors:
    flat = flatten(state)
    return {name: flat[name] for name in batch_norms(flat)}


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_fedbn_the_norms_are_found_by_their_names() -> None:
    assert set(norms_of(initial(task()))) == NORM
    encoders = {"acc": Encoder(kind="transformer1d", width=8, depth=1), "gyro": Encoder(width=4, depth=1)}
    its = task()
    its = its.model_copy(update={"network": its.network.model_copy(update={"encoders": encoders})})
    found = {name.rpartition(".")[0] for name in norms_of(initial(its))}
    # norm_out and those of the blocks are layer normalisation
    assert found == {"encoder/acc/norm_in", "encoder/gyro/convolutions.1"}


def test_fedbn_strict_norms_never_leave_the_device() -> None:
    its = task(private_norms="strict")
    state = initial(its)
    result = train(its, windows(), state)
    assert not NORM & result.tensors.keys()
    assert set(result.private) == NORM
    after = folded(its, state, {"a": result, "b": train(its, windows(), state, device="b")})
    assert same(norms_of(after), norms_of(state))
    assert not np.array_equal(after["head"]["head/fc1.weight"], state["head"]["head/fc1.weight"])
    leak = update(its, result)
    leak.tensors["encoder/acc/convolutions.1.bias"] = np.zeros(4, np.float32)
    with pytest.raises(Refused, match=r"encoder/acc/convolutions.1.bias") as caught:
        method("fedavg").server().check(its, state, leak)
    assert caught.value.reason is Reason.WRONG_TENSORS


def test_fedbn_with_mean_others_get_the_mean_of_what_devices_have() -> None:
    its = task(private_norms="with_mean", weigh_by="equal")
    state = initial(its)
    results = {name: train(its, windows(), state, device=name) for name in ("a", "b")}
    after = norms_of(folded(its, state, results))
    for name in NORM:
        want = (results["a"].private[name] + results["b"].private[name]) / 2
        np.testing.assert_allclose(after[name], want, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("how", ["strict", "with_mean"])
def test_fedbn_a_round_begins_with_the_device_s_own_norms(how: str) -> None:
    its = task(private_norms=how)
    first = train(its, windows(), initial(its))
    state = folded(its, initial(its), {"d": first, "e": train(its, windows(24), initial(its), device="e")})
    config = METHOD.configure(its)
    own = blended(config, state, first.private)
    assert same(norms_of(own), {name: first.private[name] for name in NORM})
    assert own["head"] is state["head"]
    again = train(its, windows(), state, first.private, round_=2)
    from_own = train(its, windows(), own, round_=2)
    assert same(again.private, from_own.private)
    assert not same(again.private, train(its, windows(), state, round_=2).private)
    # what is sent leads from the fleet's tensors to the device's, not from its own ones
    for name, delta in again.tensors.items():
        if name in NORM:
            np.testing.assert_allclose(flatten(state)[name] + delta, again.private[name], atol=1e-5)


def test_fedbn_an_encoder_that_had_no_windows_keeps_the_norms_of_before() -> None:
    its = task(private_norms="strict")
    first = train(its, windows())
    after = train(its, without(windows(), 1, slice(0, 12)), private=first.private, round_=2)
    assert set(after.private) == NORM
    assert all(np.array_equal(after.private[n], first.private[n]) for n in NORM if "gyro" in n)
    assert any(not np.array_equal(after.private[n], first.private[n]) for n in NORM if "acc" in n)


@pytest.mark.parametrize("damage", ["shape", "nan", "negative variance", "lost"])
def test_fedbn_norms_that_cannot_be_used_are_the_fleet_s(damage: str) -> None:
    its = task(private_norms="with_mean")
    state, private = initial(its), dict(train(its, windows()).private)
    bad = "encoder/acc/convolutions.1.running_var"
    changed = {"shape": np.ones(3), "nan": np.full(4, np.nan), "negative variance": -np.ones(4)}
    if damage == "lost":
        del private[bad]
    else:
        private[bad] = changed[damage].astype(np.float32)
    own = norms_of(blended(METHOD.configure(its), state, private))
    assert all(np.array_equal(own[n], flatten(state)[n]) for n in NORM if "acc" in n)
    assert all(np.array_equal(own[n], private[n]) for n in NORM if "gyro" in n)
    train(its, windows(), state, private, round_=2)


def test_fedbn_the_coordinator_says_that_it_cannot_evaluate_without_norms() -> None:
    client, held = method("fedavg").client(), windows()
    strict, shared = task(private_norms="strict"), task(private_norms="with_mean")
    with pytest.raises(Misconfigured, match=r'config\.private_norms = "with_mean" would give their mean'):
        client.evaluate(strict, held, initial(strict))
    assert client.evaluate(shared, held, initial(shared)).metrics["windows"] == 12
    assert METHOD.personal(METHOD.configure(task())) == ()
    assert method("fedavg").blended(task(), initial(task()), {}) is not None


def uncalibrated(held: WindowSet, seed: int) -> WindowSet:
    """As from a device whose sensors have a gain and an offset of their own, channel by channel."""
    rng, x = np.random.default_rng(seed), {}
    for name, x_BCT in held.x.items():
        gain_C1, offset_C1 = rng.uniform(0.3, 3, (x_BCT.shape[1], 1)), rng.normal(0, 2, (x_BCT.shape[1], 1))
        x[name] = (x_BCT * gain_C1 + offset_C1).astype(np.float32)
    return replace(held, x=x)


@pytest.mark.long
def test_fedbn_devices_with_sensors_of_their_own_predict_better_with_norms_of_their_own() -> None:
    reached = {}
    for how in ("none", "strict", "with_mean"):
        its = contract_cases.task_of(METHOD).model_copy(update={"config": {"private_norms": how}})
        client, state = METHOD.client(), initial(its)
        private: dict[str, Tensors] = {f"d{i}": {} for i in range(4)}
        for round_ in range(1, 13):
            results = {}
            for i, name in enumerate(private):
                held = uncalibrated(contract_cases.windows_of(its, 10 * round_ + i, count=192), i)
                results[name] = train(its, held, state, private[name], round_, name)
            private = {name: result.private for name, result in results.items()}
            state = folded(its, state, results)
        scores = []
        for i, own in enumerate(private.values()):
            module = client.inference_model(its, METHOD.blended(its, state, own))
            test = uncalibrated(contract_cases.windows_of(its, 900 + i, count=90), i)
            scores.append(judge(test.y_B, probabilities(module, test)).metrics["accuracy"])
        reached[how] = float(np.mean(scores))
    assert reached["strict"] > reached["none"] + 0.1
    assert reached["with_mean"] == pytest.approx(reached["strict"], abs=0.05)
