"""Parts of an entity and what Phi makes of them, on numbers that can be checked by hand."""

import math

import pytest
import torch

from models.knowledge_graph.networks import modality_vectors
from models.knowledge_graph.networks.fusion import FUSIONS, FixedWeights, Gated, Weighted, log_probabilities

NAN = float("nan")
H_BPD = torch.tensor([[[1.0, 2.0], [3.0, -6.0], [5.0, 10.0]], [[0.5, 0.0], [NAN, NAN], [1.5, 4.0]]])
PRESENT_BP = torch.tensor([[True, True, True], [True, False, True]])
S_BD = H_BPD[:, 0]


def fused(kind, *, present_BP=PRESENT_BP, seed=0):
    torch.manual_seed(seed)
    return FUSIONS[kind](3, 2)(H_BPD, present_BP)


def test_projections_are_linear_maps_and_absent_features_are_zeros_whatever_they_hold():
    torch.manual_seed(0)
    made = modality_vectors.Projections({"values": 2, "text": 3}, dim=2)
    features = {"values": torch.tensor([[NAN, 1.0], [2.0, 1.0]]), "text": torch.ones(2, 3)}
    present_BM = torch.tensor([[False, True], [True, False]])
    h_BPD = made(S_BD, features, present_BM)
    values, text = (layer.weight.detach() for layer in made.weights)
    expected = torch.stack(
        [
            torch.stack([S_BD[0], torch.zeros(2), text.sum(dim=1)]),
            torch.stack([S_BD[1], 2 * values[:, 0] + values[:, 1], torch.zeros(2)]),
        ]
    )
    torch.testing.assert_close(h_BPD.detach(), expected)
    h_BPD.sum().backward()
    assert all(bool(torch.isfinite(layer.weight.grad).all()) for layer in made.weights)


def test_the_structure_is_always_there():
    present_BM = torch.tensor([[False, True], [True, False]])
    assert modality_vectors.with_structure(present_BM).tolist() == [[True, False, True], [True, True, False]]


def test_the_average_is_over_the_parts_that_are_there():
    torch.testing.assert_close(fused("average"), torch.tensor([[[3.0, 2.0]], [[1.0, 2.0]]]))


def test_weighted_starts_as_the_average_of_all_parts_or_at_given_weights():
    torch.testing.assert_close(fused("weighted")[0].detach(), torch.tensor([[3.0, 2.0]]))
    given = Weighted(3, 2, start=(1.0, 0.5, 0.0))(H_BPD, PRESENT_BP)
    torch.testing.assert_close(given.detach(), torch.tensor([[[2.5, -1.0]], [[0.5, 0.0]]]))


def test_fixed_weights_share_what_the_structure_leaves_and_nothing_trains_them():
    phi = FixedWeights(3, 2, modalities=0.5)
    torch.testing.assert_close(
        phi(H_BPD, PRESENT_BP), 0.5 * S_BD[:, None] + 0.25 * torch.nan_to_num(H_BPD[:, 1:]).sum(1, True)
    )
    assert not list(phi.parameters())
    assert not phi.state_dict()


def test_concatenation_is_two_layers_on_the_parts_side_by_side():
    torch.manual_seed(0)
    phi = FUSIONS["concat"](3, 2)
    one, _, two = phi.layers
    x_6 = torch.tensor([0.5, 0.0, 0.0, 0.0, 1.5, 4.0])
    expected = two.weight @ torch.relu(one.weight @ x_6 + one.bias) + two.bias
    torch.testing.assert_close(phi(H_BPD, PRESENT_BP)[1, 0], expected)


def test_a_split_entity_has_a_view_for_each_part():
    torch.testing.assert_close(fused("split"), torch.nan_to_num(H_BPD))
    assert FUSIONS["split"](3, 2).views == 3


def test_gated_starts_as_the_structure_alone_and_learns_to_let_a_modality_in():
    torch.manual_seed(0)
    phi = FUSIONS["gated"](3, 2)
    assert torch.equal(phi(H_BPD, PRESENT_BP)[:, 0], S_BD)
    phi(H_BPD, PRESENT_BP).square().sum().backward()
    assert all(bool((weight.grad != 0).any()) for weight in phi.w0.parameters())
    with torch.no_grad():
        phi.w0[1].weight.copy_(torch.eye(2))
    v_D = torch.tensor([1.5, 4.0])
    passed_D = torch.sigmoid(phi.w1[1].weight @ S_BD[1]) * (phi.w2[1].weight @ v_D)
    torch.testing.assert_close(phi(H_BPD, PRESENT_BP)[1, 0], S_BD[1] + passed_D)


def test_the_papers_gate_is_averaged_with_the_structure():
    torch.manual_seed(0)
    phi = Gated(3, 2, from_zero=False)
    v_D = torch.tensor([1.5, 4.0])
    inner_D = torch.sigmoid(phi.w1[1].weight @ S_BD[1]) * (phi.w2[1].weight @ v_D)
    expected = (S_BD[1] + phi.w0[1].weight @ inner_D) / 2
    torch.testing.assert_close(phi(H_BPD, PRESENT_BP)[1, 0], expected)


@pytest.mark.parametrize("kind", FUSIONS)
def test_every_fusion_leaves_absent_parts_out_of_embeddings_and_gradients(kind):
    torch.manual_seed(0)
    phi = FUSIONS[kind](3, 2)
    h_BPD = H_BPD.clone().requires_grad_()
    e_BVD = phi(h_BPD, PRESENT_BP)
    assert e_BVD.shape == (2, phi.views, 2)
    assert bool(torch.isfinite(e_BVD).all())
    (e_BVD * torch.arange(1.0, e_BVD.numel() + 1).view_as(e_BVD)).sum().backward()
    assert h_BPD.grad[1, 1].tolist() == [0, 0]
    assert bool(torch.isfinite(h_BPD.grad).all())
    assert bool((h_BPD.grad[:, 0] != 0).any())


@pytest.mark.parametrize("kind", FUSIONS)
def test_parts_that_are_not_said_to_be_absent_are_there(kind):
    h_BPD = torch.nan_to_num(H_BPD)
    torch.manual_seed(0)
    phi = FUSIONS[kind](3, 2)
    assert torch.equal(phi(h_BPD), phi(h_BPD, torch.ones(2, 3, dtype=torch.bool)))


def test_1_probabilities_of_views_are_averaged():
    scores_VBL = torch.log(torch.tensor([[[1.0, 3.0]], [[1.0, 1.0]]])) + 5
    expected = torch.log(torch.tensor([[(0.25 + 0.5) / 2, (0.75 + 0.5) / 2]]))
    torch.testing.assert_close(log_probabilities(scores_VBL), expected)
    torch.testing.assert_close(log_probabilities(scores_VBL[:1]), torch.log(torch.tensor([[0.25, 0.75]])))


@pytest.mark.parametrize("views", [1, 2])
def test_1_a_candidate_that_does_not_count_has_no_probability_and_no_gradient(views):
    scores_VBL = torch.tensor([[[1.0, 2.0, -torch.inf]]]).repeat(views, 1, 1).requires_grad_()
    logp_BL = log_probabilities(scores_VBL)
    assert logp_BL[0, 2].item() == -torch.inf
    assert float(logp_BL[0, 0].detach()) == pytest.approx(-math.log(1 + math.e))
    logp_BL[0, 0].backward()
    assert scores_VBL.grad[:, 0, 2].tolist() == [0] * views
    assert bool(torch.isfinite(scores_VBL.grad).all())
