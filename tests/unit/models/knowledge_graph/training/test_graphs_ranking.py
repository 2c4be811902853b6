"""Filtered ranks: worked by hand, ties at their mean, and never a good rank for a score that is no number."""

import math

import pytest
import torch

from models.knowledge_graph.networks.triple_scores import ComplEx, TransE
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.ranking import Ranking, pooled, ranking, ranks

PLACE = TransE(1, 10.0)


def placed(asked, at, relations=(0.0,), triples=(), **kwargs):
    """Ranks of questions among entities on a line, where a relation moves by a number."""
    e_ED, r_XC = (torch.tensor(list(values), dtype=torch.float64)[:, None] for values in (at, relations))
    count = max(1, len(relations) // 2)
    known = KnownAnswers([questions(torch.tensor(list(triples)), count)] if triples else [], len(at), count)
    return ranks(torch.tensor(asked), e_ED, r_XC, score=PLACE, known=known, **kwargs).tolist()


def test_a_rank_counts_who_scores_higher():
    # from 0 the others lie 0, 1, 2, 3 away
    assert placed([[0, 0, e] for e in range(4)], [0, 1, -2, 3]) == [1, 2, 3, 4]


def test_other_known_answers_are_left_out_and_the_answer_itself_never_is():
    asked = [[0, 0, 3], [0, 0, 1], [0, 1, 3]]
    assert placed(asked, [0, 1, -2, 3], [0, 0]) == [4, 2, 4]
    assert placed(asked, [0, 1, -2, 3], [0, 0], triples=[[0, 0, 3], [0, 0, 1], [0, 0, 2]]) == [2, 2, 4]


def test_heads_are_ranked_by_the_inverse_relation():
    # relation 0 moves by 5, its inverse by -5; 0 -> 2 as 0 + 5 = 5
    asked = questions(torch.tensor([[0, 0, 2]]), relations=1).tolist()
    assert placed(asked, [0.0, 0.5, 5.0, 4.6], [5.0, -5.0]) == [1, 1]
    assert placed(asked, [0.0, 0.5, 5.2, 4.9], [5.0, -5.0]) == [2, 1]


def test_ties_share_the_mean_of_their_ranks():
    assert placed([[0, 0, e] for e in range(4)], [0, 2, -2, 2]) == [1, 3, 3, 3]
    assert placed([[0, 0, 1]], [7.0] * 9) == [5]  # all alike: the middle
    # a tie that is known is no tie
    assert placed([[0, 0, 1]], [0, 2, -2, 2], [0, 0], triples=[[0, 0, 1], [0, 0, 3]]) == [2.5]


@pytest.mark.parametrize(
    ("at", "rank"), [([0, 1, math.nan, 3], 3), ([0, math.nan, 2, 3], 4), ([math.nan] * 4, 4)]
)
def test_a_score_that_is_no_number_is_never_a_good_rank(at, rank):
    assert placed([[0, 0, 1]], at) == [rank]


def test_batches_change_nothing_and_hold_no_more_scores_than_they_may(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    asked = torch.stack(
        [torch.randint(high, (50,), generator=generator) for high in (9, 2, 9)], dim=1
    ).tolist()
    at = torch.rand(9, generator=generator).tolist()
    triples = [row for row in asked if row[1] == 0][:10]
    whole = placed(asked, at, [0.1, -0.1], triples)
    held = []
    inner = PLACE.score
    monkeypatch.setattr(
        PLACE, "score", lambda q_BD, e_KD: held.append(len(q_BD) * len(e_KD)) or inner(q_BD, e_KD)
    )
    assert placed(asked, at, [0.1, -0.1], triples, cells=40) == whole
    assert max(held) == 36
    assert placed(asked, at, [0.1, -0.1], triples, cells=1) == whole
    assert max(held) == 36  # one question needs nine
    assert sum(held) == 2 * 50 * 9


def test_no_slopes_are_kept():
    e_ED, r_XC = torch.rand(4, 2, requires_grad=True), torch.rand(2, 2, requires_grad=True)
    found = ranks(torch.tensor([[0, 0, 1]]), e_ED, r_XC, score=ComplEx(2), known=KnownAnswers([], 4, 1))
    assert not found.requires_grad


def test_figures_of_ranks():
    found = ranking(torch.tensor([1.0, 2.0, 4.0, 20.0]))
    assert found == Ranking(
        mrr=(1 + 0.5 + 0.25 + 0.05) / 4, hits_1=0.25, hits_3=0.5, hits_10=0.75, questions=4
    )
    assert ranking(torch.tensor([1.5])).hits_1 == 0  # a tie for the first place is none


def test_clients_are_weighted_by_what_they_were_asked():
    one, other = Ranking(0.5, 0.4, 0.5, 0.6, 100), Ranking(0.2, 0.1, 0.2, 0.6, 300)
    found = pooled([one, other, Ranking(0, 0, 0, 0, 0)])
    assert (found.mrr, found.hits_1, found.hits_3) == pytest.approx((0.275, 0.175, 0.275))
    assert (found.hits_10, found.questions) == (pytest.approx(0.6), 400)


def test_nothing_asked_gives_zeros_and_no_error():
    nothing_Q3 = torch.empty(0, 3, dtype=torch.int64)
    assert (
        ranks(
            nothing_Q3, torch.rand(4, 1), torch.rand(2, 1), score=PLACE, known=KnownAnswers([], 4, 1)
        ).tolist()
        == []
    )
    assert ranking(torch.empty(0)) == pooled([]) == Ranking(0, 0, 0, 0, 0)
