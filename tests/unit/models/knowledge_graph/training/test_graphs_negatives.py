"""Questions, their known answers, and the entities that an answer is told apart from."""

import pytest
import torch

from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.negatives import Private, Shared

TRIPLES = torch.tensor([[0, 0, 1], [0, 0, 2], [3, 1, 1], [0, 0, 1], [2, 0, 2]])
ASKED = questions(TRIPLES, relations=2)
KNOWN = KnownAnswers([ASKED], entities=6, relations=2)


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def test_a_triple_asks_for_its_tail_and_by_the_inverse_relation_for_its_head():
    assert questions(TRIPLES[:3], relations=2).tolist() == [
        [0, 0, 1], [0, 0, 2], [3, 1, 1],
        [1, 2, 0], [2, 2, 0], [1, 3, 3],
    ]  # fmt: skip


def test_a_graph_s_own_triples_can_be_asked():
    triples_N3 = TRIPLES.numpy().copy()
    triples_N3.flags.writeable = False
    graph = KnowledgeGraph.bare(("a", "b", "c", "d"), ("r", "s"), triples_N3)
    assert torch.equal(questions(graph.triples_N3, len(graph.relations)), ASKED)
    assert questions(triples_N3[:0], 2).shape == (0, 3)


def test_known_answers_are_those_of_the_same_entity_and_relation_and_direction():
    asked_B3 = torch.tensor([[0, 0, 1], [1, 2, 0], [5, 1, 0], [2, 0, 2], [2, 2, 0], [5, 3, 5]])
    row_P, entity_P = KNOWN.answers(asked_B3)
    found = {b: entity_P[row_P == b].tolist() for b in range(len(asked_B3))}
    assert found == {0: [1, 2], 1: [0], 2: [], 3: [2], 4: [0, 2], 5: []}
    held_BE = KNOWN.holds(asked_B3, torch.arange(6).expand(6, 6))
    assert {b: held_B.nonzero()[:, 0].tolist() for b, held_B in enumerate(held_BE)} == found
    assert len(KNOWN) == 8  # four different triples, both ways


def test_answers_of_several_sets_are_known_together():
    parts = [questions(TRIPLES[:1], 2), questions(TRIPLES[1:], 2), torch.empty(0, 3, dtype=torch.int64)]
    assert len(KnownAnswers(parts, 6, 2)) == 8


def test_where_nothing_is_known_nothing_is_an_answer():
    nothing = KnownAnswers([], 6, 2)
    assert len(nothing) == 0
    assert [len(found) for found in nothing.answers(ASKED)] == [0, 0]
    assert not nothing.holds(ASKED, torch.arange(6).expand(10, 6)).any()


@pytest.mark.parametrize("wrong", [[6, 0, 0], [0, 4, 0], [0, 0, -1]])
def test_questions_that_do_not_fit_the_graph_are_refused(wrong):
    with pytest.raises(ValueError, match="do not fit 6 entities and 2 relations"):
        KnownAnswers([torch.tensor([wrong])], 6, 2)


def test_a_graph_too_large_to_number_is_refused():
    with pytest.raises(ValueError, match="too many to number"):
        KnownAnswers([], 2**30, 2**3)


def test_shared_negatives_are_different_entities_and_the_batch_s_own():
    draw = Shared(4, KNOWN)
    drawn = draw(ASKED, seeded())
    assert drawn.entity.shape == (4,)
    assert len(set(drawn.entity.tolist())) == 4
    assert drawn.void_BK.shape == (10, 4)
    seen = {tuple(draw(ASKED, seeded(seed)).entity.tolist()) for seed in range(20)}
    assert len(seen) > 10


def test_all_entities_are_negatives_where_there_are_no_more():
    assert sorted(Shared(100, KNOWN)(ASKED, seeded()).entity.tolist()) == list(range(6))


@pytest.mark.parametrize("kind", [Shared, Private])
def test_known_answers_and_an_unknown_question_s_own_are_void(kind):
    asked_B3 = torch.cat((ASKED, torch.tensor([[5, 1, 4], [4, 3, 4]])))
    draw = kind(5, KNOWN)
    for seed in range(10):
        drawn = draw(asked_B3, seeded(seed))
        entity_BK = drawn.entity.expand(12, 5)
        expected = KNOWN.holds(asked_B3, entity_BK) | (entity_BK == asked_B3[:, 2:])
        assert torch.equal(drawn.void_BK, expected)
        assert not drawn.void_BK.all()


def test_private_negatives_are_drawn_evenly_for_each_question():
    drawn = Private(2000, KNOWN)(ASKED, seeded())
    assert drawn.entity.shape == (10, 2000)
    shares_E = torch.bincount(drawn.entity.flatten(), minlength=6) / drawn.entity.numel()
    assert bool((shares_E - 1 / 6).abs().max() < 0.02)
    assert not torch.equal(drawn.entity[0], drawn.entity[1])


@pytest.mark.parametrize("kind", [Shared, Private])
def test_the_same_seed_draws_the_same(kind):
    draw = kind(3, KNOWN)
    one, other = draw(ASKED, seeded()), draw(ASKED, seeded())
    assert torch.equal(one.entity, other.entity)
    assert torch.equal(one.void_BK, other.void_BK)


@pytest.mark.parametrize("kind", [Shared, Private])
def test_no_negatives_at_all_are_refused(kind):
    with pytest.raises(ValueError, match="0 negatives"):
        kind(0, KNOWN)
