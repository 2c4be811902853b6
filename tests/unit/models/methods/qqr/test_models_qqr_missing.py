"""QQR where a modality is missing: what stands for it, in training and at inference."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from models.methods.qqr import QqrConfig, losses
from models.methods.qqr.client import make_client
from models.methods.qqr.prototypes import rounds_name, values_name
from models.multimodal.prototypes import complete
from protocol.errors import Transient
from tests.support.methods.qqr_cases import task, train, windows, with_prototypes, without

IMPUTE = get_args(QqrConfig.model_fields["impute"].annotation)


@pytest.mark.parametrize(
    ("impute", "trained", "set_aside"),
    [
        ("pnr", 12, 0),
        ("pnr_posterior", 12, 0),
        ("mean_feature", 12, 0),
        ("zero_feature", 12, 0),
        ("zero_input", 12, 0),
        ("complete_only", 6, 6),
    ],
)
def test_how_many_windows_train_with_half_of_them_incomplete(impute, trained, set_aside):
    result = train(task(impute=impute), without(windows(), 1, np.arange(12) < 6))
    assert result.metrics["windows"] == trained
    assert result.metrics["set_aside"] == set_aside


def test_every_way_to_complete_a_window_trains_differently():
    state, some = with_prototypes(task()), without(windows(), 1, np.arange(12) < 6)
    heads = {
        impute: train(task(impute=impute), some, state).tensors["head/fc1.weight"].tobytes()
        for impute in IMPUTE
    }
    assert len(set(heads.values())) == len(IMPUTE) == 6


def test_imputing_by_posterior_shows_the_head_no_label_and_equals_what_inference_does():
    z = [torch.tensor([[1.0, 0], [0, 1]], requires_grad=True), torch.zeros(2, 2)]
    present_BM = torch.tensor([[True, False], [True, True]])
    vbar = [torch.tensor([[4.0, 0], [0, 4]]), torch.tensor([[8.0, 0], [0, 8]], requires_grad=True)]
    seen = [torch.tensor([True, True])] * 2
    filled = losses.imputed_by_posterior(z, present_BM, vbar, seen)
    far = np.exp(-np.hypot(1, 4)) / (np.exp(-3) + np.exp(-np.hypot(1, 4)))  # p of the second class
    np.testing.assert_allclose(filled[1][0].detach(), [8 * (1 - far), 8 * far], rtol=1e-5)
    assert filled[1][1].tolist() == [0, 0]  # it is there
    assert torch.equal(filled[1], complete(z, present_BM, vbar, seen)[1])
    (filled[0].sum() + filled[1].sum()).backward()
    assert z[0].grad.tolist() == [[1, 1], [1, 1]]  # of itself alone: none by way of the posterior
    assert vbar[1].grad is None


def test_mean_imputation_fills_the_mean_of_the_classes_that_have_a_prototype_whatever_the_class():
    vbar_KD = torch.tensor([[3.0, 0], [0, 9], [9, 9]], requires_grad=True)
    z_BD, present_B = torch.ones(3, 2, requires_grad=True), torch.tensor([True, False, False])
    filled = losses.imputed_by_mean(z_BD, present_B, vbar_KD, torch.tensor([True, True, False]))
    np.testing.assert_allclose(filled.detach(), [[1, 1], [1.5, 4.5], [1.5, 4.5]], rtol=1e-6)
    filled.sum().backward()
    assert vbar_KD.grad is None
    none = losses.imputed_by_mean(z_BD, present_B, vbar_KD, torch.tensor([False] * 3))
    assert none[1].tolist() == [0, 0]


def test_mean_imputation_is_the_same_at_inference():
    the_task = task(impute="mean_feature")
    state = with_prototypes(the_task)
    state["prototypes/gyro"][rounds_name("gyro")] = np.float32([1, 1, 0])
    model = make_client().inference_model(the_task, state)
    some = windows()
    x = tuple(torch.from_numpy(some.x[name]) for name in the_task.modality_names)
    present_BM = torch.tensor([[True, False]]).expand(12, 2)
    with torch.inference_mode():
        filled_BD = model.features(present_BM, x)[1]
    # the table's rows have the length feature_scale along one axis each
    np.testing.assert_allclose(filled_BD, np.tile([4, 4, 0, 0], (12, 1)), atol=1e-5)


@pytest.mark.parametrize("impute", ["pnr_posterior", "mean_feature"])
def test_whatever_the_class_a_window_waits_only_where_none_has_a_prototype_of_what_it_lacks(impute):
    some = without(windows(), 1, np.arange(12) < 6)
    the_task = task(impute=impute, missing_prototype="wait")
    state = with_prototypes(the_task)
    state["prototypes/gyro"][rounds_name("gyro")] = np.float32([0, 0, 1])
    assert train(the_task, some, state).metrics["waiting"] == 0
    state["prototypes/gyro"][rounds_name("gyro")] = np.zeros(3, np.float32)
    assert train(the_task, some, state).metrics["waiting"] == 6


def test_pce_on_incomplete_pulls_what_is_there_only_where_something_is_missing():
    name, state = "encoder/acc/fc.weight", with_prototypes(task())
    some = without(windows(), 1, np.arange(12) < 6)
    off, on, nothing = (
        train(task(pce_on_incomplete=pull, beta=beta), some, state)
        for pull, beta in ((False, 0.5), (True, 0.5), (True, 0.0))
    )
    assert not np.array_equal(on.tensors[name], off.tensors[name])
    assert np.array_equal(nothing.tensors[name], off.tensors[name])
    whole = [train(task(pce_on_incomplete=pull), windows(), state).tensors for pull in (False, True)]
    assert all(np.array_equal(tensor, whole[1][n]) for n, tensor in whole[0].items())
    assert on.metrics["low_quality"] == 0


def test_a_class_without_prototype_waits_or_is_padded_as_set_and_is_counted():
    some = without(windows(), 1, np.arange(12) < 6)
    state = with_prototypes(task())
    state["prototypes/gyro"][rounds_name("gyro")] = np.float32([1, 0, 1])
    waiting = train(task(missing_prototype="wait"), some, state)
    assert (waiting.metrics["waiting"], waiting.metrics["windows"], waiting.metrics["imputed"]) == (2, 10, 4)
    # what waits makes prototypes of what it has
    assert tuple(waiting.extra["prototypes"]["acc"]["counts"]) == (4, 4, 4)
    padded = train(task(missing_prototype="zero_feature"), some, state)
    assert (padded.metrics["waiting"], padded.metrics["windows"]) == (0, 12)


def test_where_every_window_waits_only_prototypes_are_sent():
    result = train(task(missing_prototype="wait"), without(windows(), 1, np.arange(12) >= 0))
    assert set(result.tensors) == {values_name("acc")}
    assert result.metrics["windows"] == 0


def test_windows_of_which_every_modality_is_gone_and_unlabelled_ones_are_left_out():
    gone = without(without(windows(), 0, [0, 1]), 1, [0, 1])
    result = train(task(), replace(gone, y_B=np.where(np.arange(12) == 5, -1, gone.y_B)))
    assert (result.metrics["windows"], result.metrics["set_aside"], result.metrics["unlabelled"]) == (9, 2, 1)
    with pytest.raises(Transient, match="set_aside 12"):
        train(task(impute="complete_only"), without(windows(), 0, np.arange(12) >= 0))


@pytest.mark.parametrize("impute", IMPUTE)
def test_evaluation_takes_missing_modalities_and_garbage_where_they_would_be(impute):
    client, the_task = make_client(), task(impute=impute)
    state = with_prototypes(the_task)
    some = without(windows(), 1, np.arange(12) < 6)
    judged = client.evaluate(the_task, some, state)
    some.x["gyro"][:6] = 1e6
    assert client.evaluate(the_task, some, state) == judged
