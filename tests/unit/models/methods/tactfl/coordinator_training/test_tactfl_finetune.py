"""Training on labelled windows: the head alone, encoders and head together, and without a fleet."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.contract import blob_of
from models.data.window_set import select
from models.methods.tactfl import TactflConfig
from models.methods.tactfl.client import make_client
from models.methods.tactfl.coordinator_training import finetune
from models.methods.tactfl.coordinator_training.finetune import (
    FinetuneBatch,
    features,
    head_trained,
    labelled_only,
    scores,
    whole_trained,
)
from models.methods.tactfl.coordinator_training.head_training import HeadRecipe, usable
from models.methods.tactfl.coordinator_training.standardization import Standard
from models.multimodal.network import build, load_blobs
from models.tensors import flatten
from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder
from tests.support.methods.tactfl_cases import task as task_of
from tests.support.methods.tactfl_cases import windows as windows_of
from tests.support.methods.tactfl_cases import without

TASK = task_of(encoder=Encoder(width=8, depth=2))
STATE = make_client().initial(TASK, 0)
LABELLED = windows_of(TASK, 48, labelled=True)
MIXED = without(without(LABELLED, 1, slice(None, 12)), 0, slice(12, 20))
"""Some windows without microphone, some without accelerometer."""


def as_bytes(state):
    return {name: tensor.tobytes() for name, tensor in flatten(state).items()}


def changed(before, after):
    mine, theirs = as_bytes(before), as_bytes(after)
    assert mine.keys() == theirs.keys()
    return {blob_of(name) for name in mine if mine[name] != theirs[name]}


# --- standard coordinates ---


def test_a_layer_carried_into_standard_coordinates_computes_the_same_and_comes_back_the_same():
    torch.manual_seed(0)
    z = [torch.randn(40, 3) * torch.tensor([0.1, 1.0, 4.0]) + 5, torch.randn(40, 2) - 3]
    standard = Standard.of(z, torch.ones(40, 2, dtype=torch.bool))
    z_BF, layer = torch.cat(z, dim=1), torch.nn.Linear(5, 6)
    before, weight = layer(z_BF), layer.weight.clone()
    standard.enter(layer)
    np.testing.assert_allclose(layer(standard(z_BF)).detach(), before.detach(), atol=1e-4)
    standard.leave(layer)
    np.testing.assert_allclose(layer.weight.detach(), weight.detach(), atol=1e-6)
    np.testing.assert_allclose(layer(z_BF).detach(), before.detach(), atol=1e-4)
    np.testing.assert_allclose(standard(z_BF).mean(dim=0), 0, atol=1e-5)
    spread_F = standard(z_BF).std(dim=0, correction=0)
    assert spread_F[0] < 0.9  # a flat axis is not blown up to the size of the others
    np.testing.assert_allclose(spread_F[1:], 1, atol=1e-5)


def test_coordinates_come_from_windows_that_have_the_modality_and_are_the_features_own_where_none_has():
    z = [torch.tensor([[1.0], [3.0], [0.0]]), torch.zeros(3, 2), torch.full((3, 1), 7.0)]
    present_BM = torch.tensor([[1, 0, 1], [1, 0, 1], [0, 0, 1]]).bool()
    standard = Standard.of(z, present_BM)
    assert standard.mean_F.tolist() == [2, 0, 0, 7]
    assert standard.spread_F.tolist() == [1, 1, 1, 1]


# --- the head ---

HEAD = HeadRecipe(epochs=40, lr=0.02, batch=16, dropout=0.2)


def test_the_head_learns_and_encoders_and_their_statistics_stay_to_the_bit():
    before = scores(TASK, MIXED, STATE, HEAD)
    after, metrics = head_trained(TASK, MIXED, STATE, HEAD, 1)
    assert changed(STATE, after) == {"head"}
    found = scores(TASK, MIXED, after, HEAD)
    assert found["labelled_loss"] < before["labelled_loss"]
    assert found["labelled_accuracy"] > max(0.6, before["labelled_accuracy"])
    assert 0 < metrics["head_loss"] < before["labelled_loss"]
    assert found["labelled_windows"] == len(MIXED)


def test_what_trains_is_what_inference_computes():
    model = make_client().inference_model(TASK, STATE)
    x = tuple(torch.from_numpy(MIXED.x[name]) for name in TASK.modality_names)
    with torch.no_grad():
        expected = model.features(torch.from_numpy(MIXED.present_BM), x)
        net = build(TASK)
        load_blobs(net, STATE)
        made = features(net.eval(), FinetuneBatch.of(TASK, MIXED), HEAD)
    for one, other in zip(made.values(), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert make_client().evaluate(TASK, MIXED, STATE).metrics["loss"] == pytest.approx(
        scores(TASK, MIXED, STATE, HEAD)["labelled_loss"]
    )


def test_with_dropout_the_head_learns_to_do_without_a_modality():
    """Where either modality tells the class, a head that never missed one relies on both."""
    deaf = without(LABELLED, 1)

    def loss(dropout):
        recipe = replace(HEAD, epochs=60, dropout=dropout)
        return scores(TASK, deaf, head_trained(TASK, LABELLED, STATE, recipe, 1)[0], recipe)["labelled_loss"]

    assert loss(0.5) < loss(0.0)


def test_no_epochs_train_nothing():
    for trained in (head_trained, whole_trained):
        state, metrics = trained(TASK, LABELLED, STATE, replace(HEAD, epochs=0), 1)
        assert as_bytes(state) == as_bytes(STATE)
        assert metrics == {}


# --- encoders and head ---

WHOLE = HeadRecipe(epochs=20, lr=0.01, batch=16)
EVERY = HeadRecipe(epochs=3, lr=0.01, batch=16, dropout=0.2, rotate_deg=20, gain=0.2, weight_decay=0.01)


def test_fine_tuning_learns_more_than_the_head_alone():
    head, _ = head_trained(TASK, MIXED, STATE, HEAD, 1)
    whole, metrics = whole_trained(TASK, MIXED, head, WHOLE, 1)
    assert changed(head, whole) == {"encoder/acc", "encoder/mic", "head"}
    assert (
        scores(TASK, MIXED, whole, WHOLE)["labelled_loss"] < scores(TASK, MIXED, head, HEAD)["labelled_loss"]
    )
    assert metrics["finetune_loss"] > 0


def test_the_step_falls_from_its_first_size_to_nothing_along_half_a_cosine(monkeypatch):
    sizes, fade = [], finetune._FadingAdam.fade

    def told(adam, lr):
        sizes.append(lr)
        fade(adam, lr)

    monkeypatch.setattr(finetune._FadingAdam, "fade", told)
    whole_trained(TASK, LABELLED, STATE, replace(WHOLE, epochs=4), 1)
    steps = 4 * 3  # 48 windows by 16
    np.testing.assert_allclose(sizes, 0.01 * (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2)


@pytest.mark.parametrize(
    "change",
    [{"dropout": 0.5}, {"gain": 0.5}, {"rotate_deg": 90}, {"weight_decay": 0.5}, {"batch": 7}, {"lr": 0.02}],
    ids=str,
)
def test_every_word_of_a_recipe_is_heard(change):
    axes = TASK.modalities[0].model_copy(update={"channels": 3})
    task = TASK.model_copy(update={"modalities": (axes, TASK.modalities[1])})
    windows, state = windows_of(task, 24, labelled=True), make_client().initial(task, 0)
    plain = replace(WHOLE, epochs=2)
    made = [whole_trained(task, windows, state, recipe, 1)[0] for recipe in (plain, replace(plain, **change))]
    assert as_bytes(made[0]) != as_bytes(made[1])


def test_recipes_are_those_of_the_config():
    config = TactflConfig.model_validate(
        {
            "head_epochs": 3,
            "head_lr": 0.1,
            "head_batch": 5,
            "head_dropout": 0.3,
            "finetune_epochs": 4,
            "finetune_lr": 0.2,
            "finetune_batch": 6,
            "finetune_rotate_deg": 7,
            "finetune_gain": 0.4,
            "finetune_dropout": 0.5,
            "finetune_weight_decay": 0.6,
            "finetune_head": "warm",
            "feature_scale": 9,
            "normalise": False,
        }
    )
    assert HeadRecipe.of_head(config) == HeadRecipe(3, 0.1, 5, 0.3, feature_scale=9, normalise=False)
    assert HeadRecipe.of_whole(config) == HeadRecipe(
        4, 0.2, 6, 0.5, 7, 0.4, 0.6, feature_scale=9, normalise=False
    )
    assert HeadRecipe.of_whole(TactflConfig()).fresh_head


def test_a_fresh_head_forgets_the_old_one_and_keeps_the_encoders():
    fresh = replace(WHOLE, epochs=1, fresh_head=True)
    other = {**STATE, "head": make_client().initial(TASK, 99)["head"]}
    assert as_bytes(whole_trained(TASK, MIXED, STATE, fresh, 1)[0]) == as_bytes(
        whole_trained(TASK, MIXED, other, fresh, 1)[0]
    )
    moved = {**STATE, "encoder/acc": make_client().initial(TASK, 99)["encoder/acc"]}
    assert as_bytes(whole_trained(TASK, MIXED, STATE, fresh, 1)[0]) != as_bytes(
        whole_trained(TASK, MIXED, moved, fresh, 1)[0]
    )
    assert as_bytes(whole_trained(TASK, MIXED, STATE, replace(WHOLE, epochs=1), 1)[0]) != as_bytes(
        whole_trained(TASK, MIXED, other, replace(WHOLE, epochs=1), 1)[0]
    )


def test_statistics_are_measured_anew_on_whole_windows_of_the_final_weights():
    """Of windows as they are: augmentation and dropout do not show in them."""
    after, _ = whole_trained(TASK, MIXED, STATE, EVERY, 1)
    net = build(TASK)
    load_blobs(net, after)
    x_BCT = torch.from_numpy(MIXED.x["acc"])[MIXED.present_BM[:, 0]] / 2.0  # the modality's scale
    convolution = net.encoders["acc"].convolutions[0]
    with torch.no_grad():
        out_BCT = convolution(x_BCT)
    given = after["encoder/acc"]
    np.testing.assert_allclose(
        given["encoder/acc/convolutions.1.running_mean"], out_BCT.mean(dim=(0, 2)), atol=1e-5
    )
    np.testing.assert_allclose(
        given["encoder/acc/convolutions.1.running_var"], out_BCT.var(dim=(0, 2)), rtol=1e-3
    )


def test_an_encoder_that_no_labelled_window_trains_stays_to_the_bit():
    after, _ = whole_trained(TASK, without(LABELLED, 1), STATE, WHOLE, 1)
    assert changed(STATE, after) == {"encoder/acc", "head"}


@pytest.mark.parametrize("kind", ["cnn1d", "lstm"])
def test_one_window_of_a_modality_leaves_finite_statistics(kind):
    task = task_of(encoder=Encoder(kind=kind, width=4, depth=1))
    lone = without(LABELLED, 1, slice(1, None))
    after, _ = whole_trained(task, lone, make_client().initial(task, 0), EVERY, 1)
    assert all(np.isfinite(t).all() for t in flatten(after).values())
    assert np.isfinite(scores(task, LABELLED, after, EVERY)["labelled_loss"])


@pytest.mark.parametrize("kind", ["cnn1d", "lstm"])
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(kind):
    task = task_of(encoder=Encoder(kind=kind, width=4, depth=1))
    state = make_client().initial(task, 0)
    for trained in (head_trained, whole_trained):
        first, again, other = (as_bytes(trained(task, MIXED, state, EVERY, seed)[0]) for seed in (1, 1, 2))
        assert first == again != other


def test_training_only_on_labels_starts_from_the_methods_fresh_network():
    start = make_client().initial(TASK, 5)
    assert as_bytes(labelled_only(TASK, LABELLED, replace(WHOLE, epochs=0), 5)[0]) == as_bytes(start)
    made, metrics = labelled_only(TASK, LABELLED, WHOLE, 5)
    assert as_bytes(made) == as_bytes(whole_trained(TASK, LABELLED, start, WHOLE, 5)[0])
    judged = make_client().evaluate(TASK, windows_of(TASK, 48, seed=9, labelled=True), made)
    assert judged.metrics["accuracy"] > 0.8  # chance is 0.33
    assert metrics["finetune_loss"] < 0.5


def test_windows_without_a_label_or_without_any_modality_are_passed_over():
    mute = without(without(LABELLED, 0, slice(40, None)), 1, slice(40, None))
    unknown = replace(mute, y_B=np.where(np.arange(48) >= 10, mute.y_B, -1))
    assert len(usable(TASK, unknown)) == 30
    assert usable(TASK, LABELLED) is LABELLED
    few = select(LABELLED, np.arange(10, 40))
    for trained in (head_trained, whole_trained):
        assert as_bytes(trained(TASK, unknown, STATE, EVERY, 1)[0]) == as_bytes(
            trained(TASK, few, STATE, EVERY, 1)[0]
        )


@pytest.mark.parametrize("trained", [head_trained, whole_trained])
def test_nothing_to_train_on_says_so(trained):
    nothing = replace(LABELLED, y_B=np.full(48, -1))
    with pytest.raises(Misconfigured, match=r"none of the 48 windows of labelled\.file"):
        trained(TASK, nothing, STATE, WHOLE, 1)
    with pytest.raises(Misconfigured, match="none of the 0 windows"):
        trained(TASK, select(LABELLED, np.arange(0)), STATE, WHOLE, 1)


def test_training_that_diverges_publishes_nothing_and_says_what_to_lower():
    broken = STATE | {"head": {n: np.full_like(t, np.nan) for n, t in STATE["head"].items()}}
    for trained in (head_trained, whole_trained):
        with pytest.raises(Misconfigured, match=r"diverged.*head_lr"):
            trained(TASK, LABELLED, broken, WHOLE, 1)
