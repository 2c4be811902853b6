"""Entities with several embeddings: scored apart, one distribution, in training and in ranking alike."""

import math

import pytest
import torch

from models.knowledge_graph.networks.multi_view import over_views
from models.knowledge_graph.networks.sparse_embedding import Descent, EmbeddingRows
from models.knowledge_graph.networks.triple_scores import SCORES, TransE
from models.knowledge_graph.training.epoch import VOID, batch_of, completion, epoch
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.negatives import Drawn, Shared
from models.knowledge_graph.training.ranking import ranking, ranks
from models.training.local import start_deterministic

ENTITIES = 16
RING = questions(torch.tensor([[e, 0, (e + 1) % ENTITIES] for e in range(ENTITIES)]), relations=1)
KNOWN = KnownAnswers([RING], ENTITIES, relations=1)


def test_several_views_answer_with_the_mean_of_their_probabilities():
    logits_VBL = torch.log(torch.tensor([[[1.0, 3.0]], [[3.0, 1.0]], [[1.0, 1.0]]]))
    found = over_views(
        lambda e, _: logits_VBL[int(e[0, 0])], torch.arange(3.0)[None, :, None], torch.zeros(1, 3)
    )
    assert found.exp().tolist() == [pytest.approx([(1 / 4 + 3 / 4 + 1 / 2) / 3] * 2)]


def test_one_view_is_the_score_itself():
    score, generator = SCORES["rotate"](6, 3.0), torch.Generator().manual_seed(1)
    batch = batch_of(RING[:9], Shared(5, KNOWN), generator)
    e_UD, r_BC = (
        torch.randn(len(batch.rows_U), 6, generator=generator),
        torch.randn(9, 3, generator=generator),
    )
    assert torch.equal(batch.logits(score, e_UD[:, None], r_BC), batch.logits(score, e_UD, r_BC))
    e_ED, r_XC = torch.randn(ENTITIES, 6, generator=generator), torch.randn(2, 3, generator=generator)
    plain_Q = ranks(RING, e_ED, r_XC, score=score, known=KNOWN)
    assert torch.equal(ranks(RING, e_ED[:, None], r_XC, score=score, known=KNOWN), plain_Q)


def test_each_view_has_relations_of_its_own_and_a_void_negative_is_none_in_any():
    e_UVD = torch.tensor([[[0.0], [0.0]], [[1.0], [2.0]], [[5.0], [7.0]]])
    void_B2 = torch.tensor([[False, True]])
    batch = batch_of(
        torch.tensor([[0, 0, 1]]), lambda *_: Drawn(torch.tensor([2, 0]), void_B2), torch.Generator()
    )
    # the first view moves by 1: distances 0 and 4; the second by 5: 3 and 2
    logits_BL = batch.logits(TransE(1, 9.0), e_UVD, torch.tensor([[1.0, 5.0]]))
    expected = (1 / (1 + math.exp(-4)) + 1 / (1 + math.exp(1))) / 2
    assert logits_BL[0, :2].exp().tolist() == pytest.approx([expected, 1 - expected])
    assert logits_BL[0, 2] == pytest.approx(VOID)
    assert float(completion(logits_BL)) == pytest.approx(-math.log(expected))


def test_a_ranking_is_by_the_mean_of_probabilities_over_all_entities():
    # asked about the first, with relations that move nothing; distances are places
    e_EVD = torch.tensor([[0.0, 0.0], [0.1, 3.0], [1.0, 1.0]])[:, :, None]
    # probabilities of the second .398 and .035, of the third .162 and .260, though its mean score is higher
    asked_Q3 = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 2]])
    found = ranks(asked_Q3, e_EVD, torch.zeros(2, 2), score=TransE(1, 9.0), known=KnownAnswers([], 3, 1))
    assert found.tolist() == [1, 2, 3]
    in_one = ranks(
        asked_Q3, e_EVD[:, 1], torch.zeros(2, 1), score=TransE(1, 9.0), known=KnownAnswers([], 3, 1)
    )
    assert in_one.tolist() == [1, 3, 2]


@pytest.mark.parametrize("name", sorted(SCORES))
def test_a_graph_is_learnt_with_two_views(name):
    generator = start_deterministic(2)
    score = SCORES[name](8, 6.0)
    structure = EmbeddingRows(score.initial(ENTITIES, generator), lr=0.05)
    other_ED = torch.randn(ENTITIES, 8, generator=generator)
    relations = EmbeddingRows(
        torch.cat([score.initial(2, generator, relations=True) for _ in range(2)], dim=1), lr=0.05
    )
    descent = Descent(structure, relations)

    def embed(rows_U):
        return torch.stack((structure.take(rows_U), other_ED[rows_U]), dim=1)

    def run():
        return epoch(
            RING, embed, relations, score=score, draw=Shared(8, KNOWN), descent=descent, generator=generator
        ).loss

    def mrr():
        e_EVD = torch.stack((structure.value_ED, other_ED), dim=1)
        small = ranks(RING, e_EVD, relations.value_ED, score=score, known=KNOWN, cells=64)
        assert torch.equal(small, ranks(RING, e_EVD, relations.value_ED, score=score, known=KNOWN))
        return ranking(small).mrr

    before, losses = mrr(), [run() for _ in range(80)]
    assert losses[-1] < 0.6 * losses[0]
    assert mrr() > 1.5 * before
