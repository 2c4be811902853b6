"""DisentAFL's equations, on numbers that can be checked by hand."""

import math

import pytest
import torch

from models.methods.disentafl import losses

YES3 = torch.tensor([True, True, True])


def test_unlabelled_windows_have_no_part_in_a_classification():
    logits_BK = torch.tensor([[0.0, 0.0], [50.0, -50.0], [math.log(3), 0.0]])
    y_B = torch.tensor([1, 1, 0])
    some_B = torch.tensor([True, False, True])
    assert float(losses.cross_entropy(logits_BK, y_B, some_B)) == pytest.approx(
        (math.log(2) + math.log(4 / 3)) / 2
    )


def test_the_mean_over_a_single_labelled_window_is_its_own_loss():
    one_B = torch.tensor([False, True, False])
    logits_BK, y_B = torch.zeros(3, 2), torch.tensor([1, 1, 0])
    assert float(losses.cross_entropy(logits_BK, y_B, one_B)) == pytest.approx(math.log(2))
    assert float(losses.squared_error(torch.full((3, 2), 2.0), torch.zeros(3, 2), one_B)) == pytest.approx(4)


@pytest.mark.parametrize("name", ["cross_entropy", "squared_error"])
def test_a_batch_without_a_label_has_no_loss_and_a_finite_gradient(name):
    made = torch.ones(3, 2, requires_grad=True)
    true = torch.zeros(3, dtype=torch.int64) if name == "cross_entropy" else torch.zeros(3, 2)
    loss = getattr(losses, name)(made, true, ~YES3)
    loss.backward()
    assert float(loss.detach()) == 0
    assert made.grad is not None
    assert made.grad.tolist() == [[0, 0]] * 3


def test_a_squared_error_is_a_mean_over_numbers_and_over_labelled_windows():
    made_BS = torch.tensor([[1.0, 3.0], [7.0, 7.0], [0.0, 2.0]])
    some_B = torch.tensor([True, False, True])
    assert float(losses.squared_error(made_BS, torch.zeros(3, 2), some_B)) == pytest.approx((5 + 2) / 2)


def test_alignment_is_the_mean_over_pairs_of_different_modalities_that_are_both_there():
    share_BMH = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 1.0], [9.0, 9.0]]])
    everywhere = torch.ones(2, 3, dtype=torch.bool)
    pairs = [25, 25, 0, 1, 128, 49 + 64]
    assert float(losses.alignment(share_BMH, everywhere)) == pytest.approx(sum(pairs) / 6)
    without = torch.tensor([[True, True, False], [True, False, True]])
    assert float(losses.alignment(share_BMH, without)) == pytest.approx((25 + 128) / 2)


def test_one_modality_is_aligned_with_nothing():
    assert float(losses.alignment(torch.ones(3, 1, 4), YES3[:, None])) == 0


def test_orthogonality_is_zero_at_right_angles_and_one_at_most_whatever_the_sign_and_length():
    z_BQF = torch.tensor([[[1.0, 0.0], [0.0, 5.0]], [[1.0, 1.0], [3.0, 3.0]], [[1.0, 1.0], [-7.0, -7.0]]])
    yes = torch.ones(1, 2, dtype=torch.bool)
    found = [float(losses.orthogonality(z_BQF[b : b + 1], yes)) for b in range(3)]
    assert found == pytest.approx([0, 1, 1])
    assert float(losses.orthogonality(1e3 * z_BQF, yes.expand(3, 2))) == pytest.approx(2 / 3)


def test_a_knowledge_type_that_a_window_lacks_is_orthogonal_to_nothing():
    z_BQF = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    there_BQ = torch.tensor([[True, False, True]])
    assert float(losses.orthogonality(z_BQF, there_BQ)) == pytest.approx(0)
    assert float(losses.orthogonality(z_BQF, there_BQ | True)) == pytest.approx(1 / 3)


def test_a_feature_of_zeros_has_a_finite_gradient():
    z_BQF = torch.zeros(2, 3, 4, requires_grad=True)
    losses.orthogonality(z_BQF, torch.ones(2, 3, dtype=torch.bool)).backward()
    assert z_BQF.grad is not None
    assert bool(z_BQF.grad.isfinite().all())


def test_distillation_pulls_the_devices_features_and_never_the_fleets():
    z_BQF, known_BQF = torch.ones(1, 2, 2, requires_grad=True), torch.zeros(1, 2, 2, requires_grad=True)
    loss = losses.distillation(z_BQF, known_BQF, torch.tensor([[True, False]]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1)
    assert known_BQF.grad is None
    assert z_BQF.grad is not None
    assert z_BQF.grad.tolist() == [[[1, 1], [0, 0]]]


def test_the_total_is_the_mean_over_targets_and_weighs_the_auxiliary_losses():
    one = torch.tensor(1.0)
    assert float(losses.total([one, 3 * one], 5 * one, 7 * one, (0.1, 0.01))) == pytest.approx(2.57)


def test_without_classes_the_mean_of_a_batch_is_distilled_and_no_window() -> None:
    z_BQF = torch.tensor([[[1.0], [5.0]], [[3.0], [9.0]], [[99.0], [7.0]]], requires_grad=True)
    counts_BQ = torch.tensor([[True, False], [True, False], [False, False]])
    loss = losses.mean_distillation(z_BQF, torch.ones(3, 2, 1), counts_BQ)
    assert float(loss.detach()) == pytest.approx(1.0), "(1 + 3) / 2 is one away"
    loss.backward()
    assert z_BQF.grad is not None
    assert z_BQF.grad.flatten().tolist() == pytest.approx([1, 0, 1, 0, 0, 0]), "all move alike, none together"
    nobody = losses.mean_distillation(z_BQF, torch.ones(3, 2, 1), torch.zeros(3, 2, dtype=torch.bool))
    assert float(nobody.detach()) == 0
