"""QQR against hand-made numbers; what every method must hold is in tests/contract."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.contract import Profile, Update
from models.methods.qqr import QqrConfig, losses
from models.methods.qqr.client import make_client
from models.methods.qqr.messages import PrototypeRows, QqrMessage
from models.methods.qqr.prototyper import class_means
from models.methods.qqr.prototypes import rounds_name, values_name
from models.methods.qqr.server import make_server
from models.tensors import apply, flatten, unflatten
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.tensors import Codec, decode, encode
from protocol.tasks.task import Task
from tests.support.methods.qqr_cases import task, train, windows, with_prototypes, without
from tests.support.tasks import update_header

# --- equations


def test_13_the_denominator_is_the_number_of_contributing_windows_of_that_class():
    z_BD = np.float32([[1.0, 0], [3, 0], [5, 5]])
    v_KD, count_K = class_means(z_BD, np.array([0, 0, 2]), 3)
    assert v_KD.tolist() == [[2, 0], [0, 0], [5, 5]]
    assert count_K.tolist() == [2, 0, 1]


def test_18_a_missing_feature_is_its_class_prototype_and_no_gradient_flows_into_it():
    z_BD = torch.ones(2, 2, requires_grad=True)
    vbar_KD = torch.tensor([[7.0, 7], [9, 9]], requires_grad=True)
    filled = losses.imputed(z_BD, torch.tensor([True, False]), torch.tensor([0, 1]), vbar_KD)
    assert filled.tolist() == [[1, 1], [9, 9]]
    filled.sum().backward()
    assert z_BD.grad.tolist() == [[1, 1], [0, 0]]
    assert vbar_KD.grad is None


def test_21_is_the_log_softmax_of_negative_distances_over_classes_that_have_a_prototype():
    z_BD = torch.tensor([[0.0, 0], [0, 0]], requires_grad=True)
    vbar_KD = torch.tensor([[3.0, 4], [0, 1], [0, 0]], requires_grad=True)
    seen_K = torch.tensor([True, True, False])
    loss_B = losses.prototype_cross_entropy(z_BD, torch.tensor([0, 2]), vbar_KD, seen_K)
    assert loss_B[0].item() == pytest.approx(5 + np.log(np.exp(-5) + np.exp(-1)), rel=1e-5)
    assert loss_B[1].item() == 0  # its class has none
    loss_B.sum().backward()
    assert torch.isfinite(z_BD.grad).all()
    assert z_BD.grad[0].any()
    assert vbar_KD.grad is None


def test_22_adds_only_low_quality_modalities():
    pce_MB = torch.tensor([[1.0, 2], [10, 20]])
    quality_MB = torch.tensor([[True, False], [True, True]])
    assert losses.rebalanced(torch.tensor(0.5), pce_MB, quality_MB, 0.5).item() == pytest.approx(
        0.5 + 0.5 * 2 / 2
    )


def test_22_without_low_quality_is_20_to_the_bit():
    ce = torch.tensor(0.1234567, requires_grad=True)
    whole = losses.rebalanced(ce, torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool), 0.5)
    assert torch.equal(whole, ce)
    whole.backward()
    assert ce.grad.item() == 1


# --- the device


@pytest.mark.parametrize("options", [{}, {"modality_dropout": 0.5, "rotate_deg": 30.0, "gain": 0.2}], ids=str)
def test_training_changes_no_window_of_its_caller(options):
    some, as_before = windows(60), windows(60)
    train(task(epochs=2, **options), some, make_client().initial(task(), 0))
    for name, x_BCT in as_before.x.items():
        assert np.array_equal(some.x[name], x_BCT)
    assert np.array_equal(some.present_BM, as_before.present_BM)


def test_prototypes_are_of_the_set_length_and_of_classes_that_occur_with_their_counts():
    some = windows(12)
    some = replace(some, y_B=np.where(some.y_B == 1, 2, some.y_B))
    result = train(task(), without(some, 1, [0, 3]))
    assert result.extra["prototypes"]["acc"] == {"classes": [0, 2], "counts": [4, 8]}
    assert result.extra["prototypes"]["gyro"] == {"classes": [0, 2], "counts": [2, 8]}
    lengths = np.linalg.norm(result.tensors[values_name("acc")], axis=1)
    np.testing.assert_allclose(lengths, 8, rtol=1e-5)


def test_windows_of_low_quality_make_no_prototypes_unless_quality_is_not_read():
    noisy = windows()
    noisy.quality_BM[:, 1] = 0.2
    noisy.quality_BM[0, 1] = 0.9
    result = train(task(), noisy)
    assert result.extra["prototypes"]["gyro"] == {"classes": [0], "counts": [1]}
    assert result.metrics["low_quality"] == 11
    bare = train(task(quality="none"), noisy)
    assert bare.extra["prototypes"]["gyro"]["counts"] == [4, 4, 4]
    assert bare.metrics["low_quality"] == 0


def test_plr_trains_towards_prototypes_only_where_quality_is_low():
    state = with_prototypes(task())
    noisy = windows()
    noisy.quality_BM[:, 1] = 0.2
    good, plr, bare = (
        train(task(quality=q), w, state) for q, w in (("plr", windows()), ("plr", noisy), ("none", noisy))
    )
    name = "encoder/gyro/fc.weight"
    assert np.array_equal(good.tensors[name], bare.tensors[name])
    assert not np.array_equal(plr.tensors[name], bare.tensors[name])
    assert np.array_equal(train(task(beta=0.0), noisy, state).tensors[name], bare.tensors[name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clean_norms": False},
        {"remeasure_norms": False},
        {"impute": "zero_input"},
        {"impute": "zero_input", "clean_norms": False},
        {"missing_prototype": "wait"},
    ],
    ids=str,
)
def test_prototypes_are_those_of_the_model_that_is_sent_with_them(options):
    some = without(windows(60), 1, np.arange(0, 60, 4))
    some.quality_BM[5::7] = 0.2
    state = make_client().initial(task(), 0)
    sent = train(task(prototype_bits=32, **options), some, state)
    model = unflatten(apply(flatten(state), {n: t for n, t in sent.tensors.items() if n in flatten(state)}))
    theirs = train(task(prototype_bits=32, upload="prototypes", **options), some, {**state, **model})
    for name in ("acc", "gyro"):
        np.testing.assert_allclose(
            sent.tensors[values_name(name)], theirs.tensors[values_name(name)], rtol=1e-4, atol=1e-4
        )


def test_prototype_upload_trains_nothing():
    result = train(task(upload="prototypes"), windows())
    assert set(result.tensors) == {values_name("acc"), values_name("gyro")}
    assert "loss" not in result.metrics


@pytest.mark.parametrize(
    ("bits", "codec", "levels"),
    [
        (2, Codec.INT2, None),
        (3, Codec.INT4, 8),
        (4, Codec.INT4, None),
        (8, Codec.INT8, None),
        (32, Codec.FLOAT32, None),
    ],
)
def test_prototypes_travel_at_the_set_bits(bits, codec, levels):
    result = train(task(prototype_bits=bits), windows())
    assert {result.codecs[values_name(m)] for m in ("acc", "gyro")} == {codec}
    assert not any(name.startswith(("encoder", "head")) for name in result.codecs)
    if levels:
        assert len(np.unique(result.tensors[values_name("acc")])) <= levels


def test_remeasured_norms_make_inference_see_what_training_saw():
    lagging, current = (train(task(remeasure_norms=on), windows()) for on in (False, True))
    norm = "encoder/acc/convolutions.1.running_var"
    assert not np.array_equal(lagging.tensors[norm], current.tensors[norm])
    weight = "encoder/acc/convolutions.0.weight"
    assert np.array_equal(lagging.tensors[weight], current.tensors[weight])
    missing = train(task(), without(windows(), 1, np.arange(12) >= 0))
    assert "encoder/gyro/convolutions.1.running_var" not in missing.tensors


def test_the_learning_rate_follows_the_round():
    assert train(task(), windows(), round_=1).metrics["lr"] == pytest.approx(0.08)
    assert train(task(), windows(), round_=3).metrics["lr"] == pytest.approx(0.08 * 0.95**2)
    assert train(task(), windows(), round_=500).metrics["lr"] == pytest.approx(0.001)


# --- the coordinator


def update(the_task: Task, tensors, rows=None, **header) -> Update:
    extra = QqrMessage(prototypes=rows or {}).extra()
    counts = dict.fromkeys(the_task.modality_names, (9, 9, 9))
    base = update_header(the_task, samples=100, counts=counts, extra=extra)
    return Update(base.model_copy(update=header), tensors)


def rows_of(classes, counts=None):
    return PrototypeRows(classes=tuple(classes), counts=tuple(counts or [1] * len(classes)))


def test_a_prototype_longer_than_any_mean_of_features_is_refused():
    the_task, server = task(), make_server()
    state, name = make_client().initial(the_task, 0), values_name("acc")
    honest = update(the_task, {name: np.full((1, 4), 4.0, np.float32)}, {"acc": rows_of([0])})  # length 8
    server.check(the_task, state, honest)
    # every value is within the bound of a single one, the whole is twice as long as a feature
    far = update(the_task, {name: np.full((1, 4), -8.0, np.float32)}, {"acc": rows_of([0])})
    with pytest.raises(Refused, match="prototype of length 16") as caught:
        server.check(the_task, state, far)
    assert caught.value.reason is Reason.OUT_OF_BOUNDS


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 32])
def test_a_quantized_prototype_of_full_length_is_never_refused(bits):
    the_task, server = task(prototype_bits=bits), make_server()
    state, name = make_client().initial(the_task, 0), values_name("acc")
    codec = {2: Codec.INT2, 3: Codec.INT4, 4: Codec.INT4, 8: Codec.INT8, 32: Codec.FLOAT32}[bits]
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows_RD = rng.normal(size=(2, 4))
        rows_RD *= 8.0 / np.linalg.norm(rows_RD, axis=1, keepdims=True)
        encoded = encode(rows_RD, codec, levels=8 if bits == 3 else None)
        sent = update(the_task, {name: decode(encoded)}, {"acc": rows_of([0, 2])})
        server.check(the_task, state, sent)


def test_5_and_15_plain_means_over_those_who_sent_and_16_over_rounds():
    the_task, server = task(), make_server()
    state = make_client().initial(the_task, 0)
    name, rounds = values_name("acc"), rounds_name("acc")
    one = np.ones((1, 4), np.float32)
    for round_, updates in enumerate(
        [[([0], one), ([0, 2], np.concatenate([3 * one, one]))], [([0], 5 * one)]], start=1
    ):
        fold = server.open(the_task, round_, state)
        for classes, values in updates:
            sent = update(the_task, {name: values}, {"acc": rows_of(classes)})
            server.check(the_task, state, sent)
            fold.fold(sent)
        state = fold.close()
    assert state["prototypes/acc"][rounds].tolist() == [2, 0, 1]
    # round 1: (1 + 3) / 2 for class 0; round 2: (2 + 5) / 2
    np.testing.assert_allclose(state["prototypes/acc"][name][:, 0], [3.5, 0, 1], rtol=1e-6)
    assert state["prototypes/gyro"][rounds_name("gyro")].tolist() == [0, 0, 0]


def test_a_weight_is_refused_since_the_mean_is_plain():
    the_task = task()
    state = make_client().initial(the_task, 0)
    delta = {n: np.zeros_like(t) for n, t in flatten(state).items() if n.startswith("head/")}
    make_server().check(the_task, state, update(the_task, delta))
    with pytest.raises(Refused, match="weight is 7"):
        make_server().check(the_task, state, update(the_task, delta, weight=7))


@pytest.mark.parametrize(
    ("rows", "values", "reason", "words"),
    [
        ({"acc": rows_of([3])}, np.ones((1, 4)), Reason.OUT_OF_BOUNDS, "class 3 of 3"),
        ({"acc": rows_of([0], [10])}, np.ones((1, 4)), Reason.OUT_OF_BOUNDS, "made from 10 windows"),
        ({"acc": rows_of([0])}, np.ones((2, 4)), Reason.WRONG_TENSORS, "shape"),
        ({"acc": rows_of([0])}, np.full((1, 4), 9), Reason.OUT_OF_BOUNDS, "at most 8.008"),
        ({"gyro": rows_of([0])}, np.ones((1, 4)), Reason.WRONG_TENSORS, "prototypes/gyro/values"),
        ({}, np.ones((1, 4)), Reason.WRONG_TENSORS, "prototypes/acc/values"),
    ],
)
def test_prototypes_that_cannot_be_are_refused(rows, values, reason, words):
    the_task = task()
    state = make_client().initial(the_task, 0)
    sent = update(the_task, {values_name("acc"): values.astype(np.float32)}, rows)
    with pytest.raises(Refused, match=words) as caught:
        make_server().check(the_task, state, sent)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"prototypes": {"acc": {"classes": [1, 0], "counts": [1, 1]}}}, "increasing"),
        ({"prototypes": {"acc": {"classes": [1, 1], "counts": [1, 1]}}}, "increasing"),
        ({"prototypes": {"acc": {"classes": [1], "counts": [0]}}}, "no window"),
        ({"prototypes": {"acc": {"classes": [1], "counts": [1, 2]}}}, "1 classes but 2 counts"),
        ({"prototypes": {"acc": {"classes": [-1], "counts": [1]}}}, r"extra\.prototypes\.acc\.classes\.0"),
        ({"prototypes": []}, r"extra\.prototypes"),
    ],
)
def test_a_message_of_the_wrong_form_is_refused_with_its_field(extra, words):
    with pytest.raises(Refused, match=words) as caught:
        QqrMessage.read(extra)
    assert caught.value.reason is Reason.MALFORMED


def test_the_route_names_own_encoders_and_all_prototypes():
    server = make_server()
    own = server.route(task(), Profile(("gyro",)))
    assert own == ("encoder/gyro", "head", "prototypes/acc", "prototypes/gyro")
    assert "encoder/acc" in server.route(task(impute="zero_input"), Profile(("gyro",)))


@pytest.mark.parametrize(
    "config", [{"bits": 4}, {"prototype_bits": 5}, {"beta": -1}, {"feature_scale": 0}, {"impute": "x"}]
)
def test_wrong_options_are_named(config):
    from models.registry import method  # noqa: PLC0415 - only this test goes through the registry

    with pytest.raises(Misconfigured, match=rf"config\.{next(iter(config))}"):
        method("qqr").configure(task(**config))


def test_the_default_options_are_the_papers():
    config = QqrConfig()
    assert (config.lr, config.lr_decay, config.lr_min, config.batch, config.epochs) == (
        0.08,
        0.95,
        0.001,
        128,
        1,
    )
    assert (config.beta, config.forgetting, config.impute, config.quality) == (
        0.5,
        "cumulative",
        "pnr",
        "plr",
    )
