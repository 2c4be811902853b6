"""Scores of triples: values worked by hand, one result by every way to it, and slopes that hold."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.knowledge_graph.networks import triple_scores
from models.knowledge_graph.networks.triple_scores import SCORES, ComplEx, RotatE, TransE

NAMES = sorted(SCORES)


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def example(name, *, queries=5, entities=7, dim=6):
    score = SCORES[name](dim, 3.0)
    return (
        score,
        numbers(queries, dim),
        numbers(queries, score.relation_dim, seed=2),
        numbers(entities, dim, seed=3),
    )


def test_transe_is_the_margin_less_the_distance_from_the_moved_head():
    score = TransE(2, 10.0)
    q_BD = score.queries(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, -1.0]]))
    assert q_BD.tolist() == [[3, 1]]
    assert score.score(q_BD, torch.tensor([[0.0, -3.0], [3.0, 3.0]]))[0].tolist() == pytest.approx([5, 8])


def test_rotate_turns_each_complex_number_by_its_own_phase():
    score = RotatE(4, 10.0)
    assert score.relation_dim == 2
    # numbers 1 + 2i and 3 - 1i, turned by 90 degrees and by 180: -2 + 1i and -3 + 1i
    h_BD, phases = torch.tensor([[1.0, 3.0, 2.0, -1.0]]), torch.tensor([[math.pi / 2, math.pi]])
    q_BD = score.queries(h_BD, phases * score.span / math.pi)
    torch.testing.assert_close(q_BD, torch.tensor([[-2.0, -3.0, 1.0, 1.0]]))
    # the second is 3 - 4i away in its first number: five; then all four by one: two
    e_KD = torch.tensor([[-2.0, -3.0, 1.0, 1.0], [1.0, -3.0, -3.0, 1.0], [-1.0, -2.0, 2.0, 2.0]])
    assert score.paired(q_BD.expand(3, 4), e_KD).tolist() == pytest.approx([10, 5, 8], abs=1e-5)


def test_complex_is_the_real_part_of_the_threefold_product():
    score = ComplEx(4, 1.0)
    h = [1 + 2j, 3 - 1j]
    r = [2 - 1j, 0.5 + 1j]
    e = [1 - 1j, -2 + 3j]
    expected = sum(a * b * c.conjugate() for a, b, c in zip(h, r, e, strict=True)).real
    h_BD, r_BC, e_KD = (torch.tensor([[x.real for x in v] + [x.imag for x in v]]) for v in (h, r, e))
    found = score.score(score.queries(h_BD, r_BC), e_KD)
    # 4 + 3i times 1 + 1i is 1 + 7i; 2.5 + 2.5i times -2 - 3i is 2.5 - 12.5i
    assert expected == 3.5
    assert found.tolist() == [[3.5]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("matrix", [0, 1000], ids=["fetched", "multiplied"])
def test_all_ways_to_a_score_agree(name, matrix, monkeypatch):
    monkeypatch.setattr(triple_scores, "_MATRIX", matrix)
    score, h_BD, r_BC, e_KD = example(name)
    q_BD = score.queries(h_BD, r_BC)
    s_BK = score.score(q_BD, e_KD)
    pick_BK = torch.tensor([[0, 0, 6], [1, 2, 3], [6, 5, 4], [3, 3, 3], [2, 0, 1]])
    torch.testing.assert_close(score.picked(q_BD, e_KD, pick_BK), s_BK.gather(1, pick_BK))
    torch.testing.assert_close(score.paired(q_BD, e_KD[:5]), s_BK[:, :5].diagonal())
    one_by_one = torch.cat(
        [score.score(score.queries(h[None], r[None]), e_KD) for h, r in zip(h_BD, r_BC, strict=True)]
    )
    torch.testing.assert_close(one_by_one, s_BK)


@pytest.mark.parametrize("name", NAMES)
def test_slopes_are_those_of_small_differences(name):
    score, h_BD, r_BC, e_KD = example(name, queries=3, entities=4)
    pick_BK = torch.tensor([[0, 3], [1, 1], [2, 0]])
    inputs = tuple(x.requires_grad_() for x in (h_BD, r_BC, e_KD))

    def everything(h_BD, r_BC, e_KD):
        q_BD = score.queries(h_BD, r_BC)
        return score.score(q_BD, e_KD), score.picked(q_BD, e_KD, pick_BK), score.paired(q_BD, e_KD[:3])

    assert torch.autograd.gradcheck(everything, inputs)


@pytest.mark.parametrize("name", ["rotate", "transe"])
def test_an_entity_right_at_the_query_has_the_full_margin_and_a_slope_that_is_finite(name):
    score, h_BD, r_BC, _ = example(name)
    q_BD = score.queries(h_BD.float(), r_BC.float()).requires_grad_()
    e_BD = q_BD.detach().clone().requires_grad_()
    pick_B1 = torch.arange(5)[:, None]
    for s_B in (
        score.paired(q_BD, e_BD),
        score.score(q_BD, e_BD).diagonal(),
        score.picked(q_BD, e_BD, pick_B1)[:, 0],
    ):
        assert s_B.tolist() == pytest.approx([3.0] * 5, abs=5e-3)
        slopes = torch.autograd.grad(s_B.sum(), (q_BD, e_BD), retain_graph=True)
        assert all(bool(torch.isfinite(slope).all()) for slope in slopes)


def test_in_float32_distances_by_a_matrix_product_are_as_good_as_said():
    score = RotatE(128, 12.0)
    q_BD, e_KD = torch.randn(40, 128, generator=torch.Generator().manual_seed(0)), torch.empty(40, 128)
    for near in (1.0, 1e-2, 1e-4, 0.0):
        e_KD = q_BD + near * torch.randn(40, 128, generator=torch.Generator().manual_seed(1))
        off_B = (score.score(q_BD, e_KD).diagonal() - score.paired(q_BD, e_KD)).abs()
        assert bool((off_B <= 1e-3 * q_BD.norm(dim=1)).all())


def test_a_turn_keeps_lengths_and_the_turn_back_undoes_it():
    score, h_BD, r_BC, _ = example("rotate")
    turned_BD = score.queries(h_BD, r_BC)
    torch.testing.assert_close(turned_BD.norm(dim=1), h_BD.norm(dim=1))
    torch.testing.assert_close(score.queries(turned_BD, -r_BC), h_BD)
    assert not torch.allclose(turned_BD, h_BD)


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_begin_even_within_the_span_and_by_the_seed(name):
    score = SCORES[name](8, 6.0)
    assert score.span == {"complex": 2.0, "rotate": 2.0, "transe": 1.0}[name]
    e_ED = score.initial(500, torch.Generator().manual_seed(3))
    assert e_ED.shape == (500, 8)
    assert e_ED.dtype == torch.float32
    assert 0.99 * score.span < float(e_ED.max()) <= score.span
    assert -score.span <= float(e_ED.min()) < -0.99 * score.span
    assert torch.equal(e_ED, score.initial(500, torch.Generator().manual_seed(3)))
    r_XC = score.initial(500, torch.Generator().manual_seed(3), relations=True)
    assert r_XC.shape == (500, 4 if name == "rotate" else 8)


class Largest(TorchDispatchMode):
    """Notes the most numbers that any result holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, out.numel() if isinstance(out, torch.Tensor) else 0)
        return out


@pytest.mark.parametrize("name", NAMES)
def test_shared_negatives_never_make_a_vector_for_each_pair(name):
    score, h_BD, r_BC, e_KD = example(name, queries=50, entities=60, dim=40)
    with Largest() as seen:
        score.score(score.queries(h_BD, r_BC), e_KD)
    assert seen.numbers == 50 * 60


@pytest.mark.parametrize("name", ["complex", "rotate"])
def test_an_odd_dimension_has_no_complex_numbers(name):
    with pytest.raises(ValueError, match="dim 7 is odd"):
        SCORES[name](7, 1.0)
    assert TransE(7).relation_dim == 7


@pytest.mark.parametrize(("dim", "gamma"), [(0, 1.0), (4, 0.0), (4, math.nan), (4, math.inf)])
def test_figures_that_are_not_positive_are_refused(dim, gamma):
    with pytest.raises(ValueError, match="must be positive"):
        TransE(dim, gamma)
