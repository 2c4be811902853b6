"""FedAvg: local epochs and their weighted mean, FedProx's term; QQR without prototypes is the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.contract import Blobs, ClientContext
from models.methods.fedavg import MAX_WEIGHT
from models.methods.fedavg.linear import FedAvgLinear
from models.registry import method
from models.tensors import difference, flatten
from models.training.group_client import GroupMember
from models.training.local import Sgd
from models.training.softmax_regression import BIAS, WEIGHT
from protocol.errors import Misconfigured, Refused, Transient
from protocol.tasks.folding import Robust
from protocol.tasks.network import Network
from protocol.tasks.task import Task
from tests.support.fedavg_cases import folded, initial, task, train, update, windows, without
from tests.support.methods import qqr_cases

SAME = {"impute": "zero_feature", "lr": 0.1, "epochs": 2, "batch": 5, "momentum": 0.5}
"""Options that both methods have."""


def model(state: Blobs) -> dict[str, bytes]:
    parts = {"encoder", "head"}
    return {name: x.tobytes() for name, x in flatten(state).items() if name.split("/")[0] in parts}


def rounds(its: Task, count: int = 3) -> dict[str, bytes]:
    """Three devices, one of which lacks a modality in some windows and one in all."""
    state, held = initial(its), windows(24)
    sets = {"a": held, "b": without(held, 1, slice(0, 9)), "c": without(held, 0, slice(0, 24))}
    route = {"a": state, "b": state, "c": {name for name in state if name != "encoder/acc"}}
    for round_ in range(1, count + 1):
        results = {
            name: train(its, one, {b: state[b] for b in route[name]}, round_=round_, device=name)
            for name, one in sets.items()
        }
        state = folded(its, state, results)
    return model(state)


@pytest.mark.parametrize("more", [{}, {"normalise": False, "gain": 0.2, "modality_dropout": 0.3}])
def test_fedavg_is_qqr_without_its_prototypes_to_the_bit(more: dict[str, float]) -> None:
    plain = rounds(task(**SAME, **more, weigh_by="equal"))
    assert plain == rounds(qqr_cases.task(**SAME, **more, quality="none"))
    assert plain != rounds(task(**SAME, **more, weigh_by="size", balanced_batches=True))


def test_fedavg_weighs_devices_by_the_windows_that_they_trained_on() -> None:
    its = task()
    state, small, large = initial(its), windows(4), without(windows(12), 1, slice(0, 12))
    large = replace(large, y_B=np.where(np.arange(12) < 3, -1, large.y_B))
    a, b = train(its, small, state), train(its, large, state)
    assert (a.weight, b.weight) == (4, 9)
    made = difference(flatten(folded(its, state, {"a": a, "b": b})), flatten(state))
    want = (4 * a.tensors["head/fc1.bias"] + 9 * b.tensors["head/fc1.bias"]) / 13
    np.testing.assert_allclose(made["head/fc1.bias"], want, atol=1e-6)
    # only one of them has the modality
    np.testing.assert_allclose(made["encoder/gyro/fc.weight"], a.tensors["encoder/gyro/fc.weight"], atol=1e-6)
    assert train(task(weigh_by="equal"), large, state).weight == 1
    robust = its.model_copy(update={"robust": Robust(fold="median")})
    voted = difference(flatten(folded(robust, state, {"a": a, "b": b})), flatten(state))
    np.testing.assert_allclose(
        voted["head/fc1.bias"], (a.tensors["head/fc1.bias"] + b.tensors["head/fc1.bias"]) / 2, atol=1e-6
    )


def test_fedavg_refuses_a_weight_that_a_device_cannot_have() -> None:
    for its, weight in ((task(), MAX_WEIGHT + 1), (task(weigh_by="equal"), 2)):
        state = initial(its)
        made = replace(train(its, windows(), state), weight=weight)
        with pytest.raises(Refused, match=rf"header.weight is {weight}"):
            method("fedavg").server().check(its, state, update(its, made))


def test_fedavg_the_sum_has_room_for_the_heaviest_devices_of_a_large_fleet() -> None:
    its = task(max_delta=1000.0)
    state = initial(its)
    fold = method("fedavg").server().open(its, 1, state)
    heavy = update(its, replace(train(its, windows(), state), weight=MAX_WEIGHT))
    for _ in range(20_000 // 400):
        fold.fold(heavy)
    deltas = fold.parts()["deltas"]
    assert deltas.max_weight >= 20_000 * MAX_WEIGHT  # type: ignore[attr-defined]  # of a sum


def test_fedavg_a_missing_modality_is_a_feature_of_zeros_or_its_windows_are_left_out() -> None:
    held = without(windows(), 1, slice(0, 4))
    zeros = train(task(), held)
    assert (zeros.metrics["windows"], zeros.metrics["incomplete"], zeros.metrics["set_aside"]) == (12, 4, 0)
    whole = train(task(impute="complete_only"), held)
    assert (whole.metrics["windows"], whole.metrics["incomplete"], whole.metrics["set_aside"]) == (8, 0, 4)
    assert whole.weight == 8
    noise = replace(held, x=held.x | {"gyro": held.x["gyro"].copy()})
    noise.x["gyro"][:4] = np.nan
    assert np.array_equal(train(task(), noise).tensors["head/fc1.weight"], zeros.tensors["head/fc1.weight"])
    with pytest.raises(Transient, match="no labelled windows that can train"):
        train(task(impute="complete_only"), without(windows(), 1, slice(0, 12)))


def test_fedavg_the_proximal_step_is_the_gradient_of_the_term() -> None:
    first_W, mu = torch.tensor([1.0, -2.0, 3.0]), 0.3
    ours = first_W.clone().requires_grad_()
    theirs = first_W.clone().requires_grad_()
    sgd = Sgd([ours], 0.05, momentum=0.5, weight_decay=0.02, proximal=mu)
    plain = Sgd([theirs], 0.05, momentum=0.5, weight_decay=0.02)
    for _ in range(4):
        sgd.descend(ours.cos().sum())
        plain.descend(theirs.cos().sum() + mu / 2 * (theirs - first_W).square().sum())
    torch.testing.assert_close(ours, theirs)
    assert not torch.equal(ours, first_W)


@pytest.mark.parametrize("linear", [False, True])
def test_fedavg_a_proximal_device_stays_nearer_to_the_fleet(linear: bool) -> None:  # noqa: FBT001 - a case
    def length(mu: float) -> float:
        its = task(epochs=8, batch=4, proximal=mu)
        if linear:
            its = its.model_copy(update={"network": Network(kind="linear", feature_dim=32)})
        sent = train(its, windows()).tensors
        return float(np.sqrt(sum(np.square(x).sum() for n, x in sent.items() if "running" not in n)))

    free, held, tight = length(0.0), length(1.0), length(8.0)
    assert tight < held < free


def test_fedavg_devices_at_once_draw_back_as_each_alone() -> None:
    its = task(proximal=0.5, epochs=3, batch=5, weight_decay=0.01)
    client, state = method("fedavg").client(), initial(its)
    sets = [replace(windows(), y_B=(np.arange(12) * n) % 3) for n in (1, 2)]
    members = [GroupMember(ClientContext(its, f"d{n}", 2, 7), one, {}) for n, one in enumerate(sets)]
    for member, made in zip(members, client.train_group(members, state), strict=True):  # type: ignore[attr-defined]  # a group client
        alone = client.train(member.context, member.windows, state, {})
        assert made is not None
        assert made.weight == alone.weight == 12
        for name, tensor in alone.tensors.items():
            np.testing.assert_allclose(made.tensors[name], tensor, rtol=1e-4, atol=2e-6, err_msg=name)
    for option in ({"private_norms": "strict"}, {"modality_dropout": 0.1}):
        assert next(iter(option)) in client.group_trouble(task(**option))  # type: ignore[attr-defined]  # as above


def test_fedavg_a_linear_network_is_trained_the_same_with_torch_or_without() -> None:
    its = task(lr=0.5, epochs=3, weigh_by="size").model_copy(
        update={"network": Network(kind="linear", feature_dim=32)}
    )
    state, held = initial(its), without(windows(), 1, slice(0, 5))
    context = ClientContext(its, "d", 1, 7)
    alone, by_client = FedAvgLinear().train(context, held, state, {}), train(its, held, state)
    assert set(alone.tensors) == {WEIGHT, BIAS}
    assert {n: x.tobytes() for n, x in alone.tensors.items()} == {
        n: x.tobytes() for n, x in by_client.tensors.items()
    }
    assert alone.weight == 12
    after = folded(its, state, {"d": alone})
    assert not np.array_equal(after["head"][WEIGHT], state["head"][WEIGHT])
    assert np.isfinite(method("fedavg").client().evaluate(its, held, after).metrics["loss"])


@pytest.mark.parametrize(
    ("config", "linear", "words"),
    [
        ({"class_weights": {"d": 2.0}}, False, "config.class_weights: 'd' is none of a, b, c"),
        (
            {"private_norms": "strict"},
            True,
            "config.private_norms: 'strict': a 'linear' network has no norms",
        ),
        ({"gain": 0.1}, True, "config.gain: 0.1: not in a 'linear' network"),
        ({"proximal": -1.0}, False, "config.proximal"),
        ({"mu": 0.1}, False, "config.mu: no such option"),
    ],
)
def test_fedavg_options_that_do_not_fit_are_named(
    config: dict[str, object],
    linear: bool,  # noqa: FBT001 - a case
    words: str,
) -> None:
    its = task(**config)
    if linear:
        its = its.model_copy(update={"network": Network(kind="linear", feature_dim=32)})
    with pytest.raises(Misconfigured) as caught:
        method("fedavg").configure(its)
    assert words in str(caught.value)
