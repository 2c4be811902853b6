"""A local epoch: the loss by hand, every question once, same seed, same bytes, and a graph that is learnt."""

import math

import pytest
import torch

from models.knowledge_graph.networks.sparse_embedding import Descent, EmbeddingRows
from models.knowledge_graph.networks.triple_scores import SCORES, TransE
from models.knowledge_graph.training.epoch import VOID, batch_of, completion, epoch, shuffled
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.negatives import Drawn, Private, Shared
from models.knowledge_graph.training.ranking import ranking, ranks
from models.training.local import Adam, start_deterministic

ENTITIES = 24
# two relations on a ring: next, and the one across
RING = torch.tensor([[e, 0, (e + 1) % ENTITIES] for e in range(ENTITIES)])
ACROSS = torch.tensor([[e, 1, (e + 12) % ENTITIES] for e in range(ENTITIES)])
ASKED = questions(torch.cat((RING, ACROSS)), relations=2)
KNOWN = KnownAnswers([ASKED], ENTITIES, relations=2)


class Client:
    """Tables, a score and negatives, from one seed."""

    def __init__(self, score="rotate", draw=Shared, seed=3):
        self.generator = start_deterministic(seed)
        self.score = SCORES[score](16, 6.0)
        self.entities = EmbeddingRows(self.score.initial(ENTITIES, self.generator), lr=0.05)
        self.relations = EmbeddingRows(self.score.initial(4, self.generator, relations=True), lr=0.05)
        self.draw = draw(8, KNOWN)
        self.descent = Descent(self.entities, self.relations)

    def epoch(self, asked_Q3=ASKED, embed=None, **kwargs):
        kwargs = {"size": 32, "descent": self.descent} | kwargs
        return epoch(
            asked_Q3,
            embed or self.entities.take,
            self.relations,
            score=self.score,
            draw=self.draw,
            generator=self.generator,
            **kwargs,
        )

    def mrr(self):
        rank_Q = ranks(ASKED, self.entities.value_ED, self.relations.value_ED, score=self.score, known=KNOWN)
        return ranking(rank_Q).mrr


def completion_of(client, batch):
    e_UD, r_BC = client.entities.value_ED[batch.rows_U], client.relations.value_ED[batch.relation_B]
    return float(completion(batch.logits(client.score, e_UD, r_BC)))


def test_2_is_the_cross_entropy_of_the_answer_among_its_negatives():
    logits_BL = torch.log(torch.tensor([[2.0, 1.0, 1.0], [1.0, 3.0, 4.0]]))
    assert float(completion(logits_BL)) == pytest.approx((math.log(2) + math.log(8)) / 2)
    assert float(completion(logits_BL + 7)) == pytest.approx(
        float(completion(logits_BL))
    )  # gamma is not seen


def test_a_batch_compares_each_question_with_its_answer_and_then_the_negatives():
    asked_B3 = torch.tensor([[5, 1, 7], [9, 0, 5]])
    void_BK = torch.tensor([[False, False, True], [True, False, False]])
    batch = batch_of(asked_B3, lambda *_: Drawn(torch.tensor([5, 2, 7]), void_BK), torch.Generator())
    assert batch.rows_U.tolist() == [2, 5, 7, 9]
    e_ED = torch.arange(10.0)[:, None]  # entity e lies at e
    logits_BL = batch.logits(TransE(1, 10.0), e_ED[batch.rows_U], torch.tensor([[1.0], [-4.0]]))
    # 5 + 1 = 6 from 7, 5, 2; 9 - 4 = 5 from 5, 2, 7
    torch.testing.assert_close(
        logits_BL, torch.tensor([[9.0, 9, 6, VOID], [10, VOID, 7, 8]]), atol=1e-4, rtol=0
    )


def test_private_negatives_give_the_scores_that_shared_ones_would():
    client = Client()
    entity_K, void_BK = torch.tensor([3, 8, 20]), torch.zeros(5, 3, dtype=torch.bool)
    shared = batch_of(ASKED[:5], lambda *_: Drawn(entity_K, void_BK), torch.Generator())
    private = batch_of(ASKED[:5], lambda *_: Drawn(entity_K.expand(5, 3), void_BK), torch.Generator())
    assert torch.equal(shared.rows_U, private.rows_U)
    e_UD, r_BC = client.entities.value_ED[shared.rows_U], client.relations.value_ED[shared.relation_B]
    torch.testing.assert_close(
        private.logits(client.score, e_UD, r_BC), shared.logits(client.score, e_UD, r_BC)
    )


def test_a_void_negative_moves_nobody_and_a_divergence_of_it_is_finite():
    batch = batch_of(ASKED[:4], Shared(ENTITIES, KNOWN), torch.Generator().manual_seed(0))
    client = Client()
    e_UD = client.entities.value_ED[batch.rows_U].requires_grad_()
    r_BC = client.relations.value_ED[batch.relation_B]
    logits_BL = batch.logits(client.score, e_UD, r_BC)
    assert (logits_BL == VOID).sum() == batch.void_BK.sum() >= 4
    log_p_BL, log_q_BL = (x_BL.detach().log_softmax(dim=1) for x_BL in (logits_BL, 2 * logits_BL))
    assert math.isfinite(float((log_p_BL.exp() * (log_p_BL - log_q_BL)).sum()))
    assert not torch.autograd.grad(logits_BL[:, 1:][batch.void_BK].sum(), e_UD)[0].any()
    nobody = Drawn(torch.arange(ENTITIES), torch.full((4, ENTITIES), True))
    assert completion_of(client, batch_of(ASKED[:4], lambda *_: nobody, torch.Generator())) == 0


@pytest.mark.parametrize("draw", [Shared, Private])
def test_every_question_is_asked_once_an_epoch(draw):
    batches = list(shuffled(ASKED, 20, draw(5, KNOWN), torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in batches] == [20, 19, 19, 19, 19]
    asked = [
        (int(batch.rows_U[about]), int(relation), int(batch.rows_U[answer]))
        for batch in batches
        for about, relation, answer in zip(batch.about_B, batch.relation_B, batch.answer_B, strict=True)
    ]
    assert asked != [tuple(row) for row in ASKED.tolist()]
    assert sorted(asked) == sorted(tuple(row) for row in ASKED.tolist())


@pytest.mark.parametrize("score", sorted(SCORES))
@pytest.mark.parametrize("draw", [Shared, Private])
def test_a_small_graph_is_learnt(score, draw):
    client = Client(score, draw)
    before = client.mrr()
    losses = [client.epoch().loss for _ in range(25)]
    assert losses[-1] < 0.5 * losses[0]
    assert client.mrr() > 2 * before


@pytest.mark.parametrize("draw", [Shared, Private])
def test_the_same_seed_gives_the_same_bytes(draw):
    one, other = Client(draw=draw), Client(draw=draw)
    for client in (one, other):
        client.losses = [client.epoch().loss for _ in range(2)]
    assert one.losses == other.losses
    assert torch.equal(one.entities.value_ED, other.entities.value_ED)
    assert torch.equal(one.relations.value_ED, other.relations.value_ED)
    third = Client(draw=draw, seed=4)
    third.epoch()
    assert not torch.equal(third.entities.value_ED, one.entities.value_ED)


def test_the_loss_is_the_mean_over_questions_however_they_are_batched():
    client = Client()
    client.entities.lr = client.relations.lr = 0.0
    client.draw = Shared(ENTITIES, KNOWN)
    # 96 questions: batches of 96, of 24, and of 14 and 13
    whole, *others = (client.epoch(size=size).loss for size in (96, 25, 14))
    assert others == pytest.approx([whole, whole], rel=1e-5)
    # batches of 14 and 13 are uneven: a mean of their means would be another figure
    mean_of_means = [
        completion_of(client, batch) for batch in shuffled(ASKED, 14, client.draw, client.generator)
    ]
    assert sum(mean_of_means) / len(mean_of_means) != pytest.approx(whole, rel=1e-5)


def test_entities_in_no_batch_stay_as_they_were():
    client = Client()
    client.draw = lambda asked_B3, _: Drawn(
        torch.tensor([4, 5]), torch.zeros(len(asked_B3), 2, dtype=torch.bool)
    )
    before_ED = client.entities.value_ED.clone()
    client.epoch(ASKED[:2])  # 0 -> 1 and 1 -> 2, by relation 0
    moved_E = (client.entities.value_ED != before_ED).any(dim=1)
    assert moved_E.nonzero()[:, 0].tolist() == [0, 1, 2, 4, 5]
    assert client.relations.steps_E.tolist() == [1, 0, 0, 0]


def test_a_fusion_may_stand_between_rows_and_embeddings():
    client = Client()
    x_EF = torch.nn.functional.one_hot(torch.arange(ENTITIES) % 2).float()
    weight_FD = torch.zeros(2, 16, requires_grad=True)
    seen = []

    def fused(rows_U):
        seen.append(rows_U)
        return client.entities.take(rows_U) + x_EF[rows_U] @ weight_FD

    descent = Descent(client.entities, client.relations, dense=Adam([weight_FD], lr=0.05))
    losses = [client.epoch(embed=fused, descent=descent).loss for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]
    assert weight_FD.detach().abs().min() > 0
    assert all(torch.equal(rows_U, torch.unique(rows_U)) for rows_U in seen)


def test_further_terms_are_told_apart_from_the_loss_and_are_descended():
    plain, pulled = Client(), Client()

    def beside(batch, e_UD, r_BC, logits_BL):
        assert logits_BL.shape == (len(batch), 9)
        assert r_BC.shape == (len(batch), 8)
        return 10 * e_UD.square().sum(dim=1).mean()

    first = pulled.epoch(size=len(ASKED), beside=beside)
    assert first.loss == plain.epoch(size=len(ASKED)).loss
    assert first.beside > 0 == plain.epoch().beside
    for _ in range(20):
        last = pulled.epoch(beside=beside)
        plain.epoch()
    assert last.beside < first.beside
    assert pulled.entities.value_ED.norm() < 0.7 * plain.entities.value_ED.norm()


def test_the_epoch_says_what_it_did():
    done = Client().epoch()
    assert done.questions == len(ASKED)
    nothing = Client().epoch(ASKED[:0])
    assert (nothing.loss, nothing.questions) == (0, 0)


def test_a_loss_that_is_not_finite_stops_before_anything_moves():
    client = Client()
    client.relations.value_ED[1] = torch.nan
    before_ED = client.entities.value_ED.clone()
    with pytest.raises(FloatingPointError, match="loss nan is not finite"):
        client.epoch(size=len(ASKED))
    assert torch.equal(client.entities.value_ED, before_ED)
