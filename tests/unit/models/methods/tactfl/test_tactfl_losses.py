"""TACTFL's equations, on numbers that can be checked by hand."""

import math

import pytest
import torch

from models.methods.tactfl import losses


def spans(*pairs: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.float64)


def test_tiou_is_time_shared_over_time_covered():
    one = spans((0.0, 4.0), (1.0, 2.0))
    other = spans((0.0, 4.0), (2.0, 6.0), (4.0, 8.0), (1.5, 2.5))
    same = torch.zeros(2, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    expected = torch.tensor([[1, 2 / 6, 0, 1 / 4], [1 / 4, 0, 0, 1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(losses.overlaps(one, other, *same), expected)
    torch.testing.assert_close(losses.overlaps(other, one, *same[::-1]), expected.T)


def test_segments_of_different_windows_share_nothing_even_at_the_same_time():
    span_S2 = spans((0.0, 1.0), (0.0, 1.0))
    windows_S = torch.tensor([0, 1])
    assert losses.overlaps(span_S2, span_S2, windows_S, windows_S).tolist() == [[1, 0], [0, 1]]


def test_targets_are_rows_of_tiou_over_their_sum_and_a_row_of_zeros_stays_one():
    tiou_SR = torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.0, 0.0]])
    found = losses.soft_targets(tiou_SR)
    torch.testing.assert_close(found, torch.tensor([[0.625, 0.375, 0.0], [0.0, 0.0, 0.0]]))


def test_2_a_cosine_does_not_depend_on_length_and_is_zero_for_a_feature_of_zeros():
    z_SD, z_RD = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[30.0, 40.0], [-4.0, 3.0]])
    torch.testing.assert_close(losses.cosines(z_SD, z_RD), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_1_is_the_cross_entropy_of_the_soft_target_at_temperature_tau():
    cos_SR = 0.5 * torch.log(torch.tensor([[1.0, 3.0]]))
    target_SR = torch.tensor([[0.25, 0.75]])
    expected = -(0.25 * math.log(1 / 4) + 0.75 * math.log(3 / 4))
    assert float(losses.contrast(cos_SR, target_SR, 0.5)) == pytest.approx(expected)
    colder = -(0.25 * math.log(1 / 10) + 0.75 * math.log(9 / 10))
    assert float(losses.contrast(cos_SR, target_SR, 0.25)) == pytest.approx(colder)


def test_1_a_segment_without_counterpart_has_no_part_in_the_mean():
    cos_SR = torch.zeros(3, 4)
    target_SR = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]])
    assert float(losses.contrast(cos_SR, target_SR, 0.1)) == pytest.approx(math.log(4))
    nothing = torch.zeros(3, 4)
    assert float(losses.contrast(cos_SR, nothing, 0.1)) == 0


def test_what_is_not_compared_is_in_no_softmax_and_its_gradient_is_finite():
    cos_SR = torch.tensor([[1.0, 0.2, 0.1], [0.2, 1.0, 0.3], [0.1, 0.3, 1.0]], requires_grad=True)
    tiou_SR = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    itself = torch.eye(3, dtype=torch.bool)
    loss = losses.symmetric(cos_SR, tiou_SR, 1.0, itself)
    # the third has no counterpart but itself: two rows of one positive and one other
    expected = sum(math.log(1 + math.exp(other - 0.2)) for other in (0.1, 0.3)) / 2
    assert float(loss.detach()) == pytest.approx(expected)
    loss.backward()
    assert cos_SR.grad is not None
    assert bool(torch.isfinite(cos_SR.grad).all())
    assert cos_SR.grad.diagonal().tolist() == [0, 0, 0]
    assert cos_SR.grad[0, 1] < 0 < cos_SR.grad[0, 2]


def test_the_loss_is_the_mean_of_both_directions_each_with_targets_of_its_own():
    cos_SR, tiou_SR = (
        torch.tensor([[0.9, 0.1, 0.4], [0.0, 0.3, 0.2]]),
        torch.tensor([[1.0, 0.0, 0.4], [0, 1, 0]]),
    )
    forth = losses.contrast(cos_SR, losses.soft_targets(tiou_SR), 0.5)
    back = losses.contrast(cos_SR.T, losses.soft_targets(tiou_SR.T), 0.5)
    assert float(forth) != pytest.approx(float(back))
    assert float(losses.symmetric(cos_SR, tiou_SR, 0.5)) == pytest.approx(float(forth + back) / 2)
    assert float(losses.symmetric(cos_SR.T, tiou_SR.T, 0.5)) == pytest.approx(float(forth + back) / 2)
