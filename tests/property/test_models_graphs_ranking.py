"""On any small graph: known answers and filtered ranks are what plain loops over sets say."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from models.knowledge_graph.networks.triple_scores import SCORES
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.negatives import Private, Shared
from models.knowledge_graph.training.ranking import ranks

ENTITIES, RELATIONS, DIM = 6, 2, 2
triple = st.tuples(st.integers(0, ENTITIES - 1), st.integers(0, RELATIONS - 1), st.integers(0, ENTITIES - 1))
graphs = st.lists(triple, max_size=12)
coarse = st.integers(-1, 1)  # few values, so that there are many ties, and none by rounding


def asked_of(triples):
    return questions(torch.tensor(triples, dtype=torch.int64).reshape(-1, 3), RELATIONS)


def answers_of(triples):
    """Question -> answers, by loops."""
    found = {}
    for head, relation, tail in triples:
        found.setdefault((head, relation), set()).add(tail)
        found.setdefault((tail, relation + RELATIONS), set()).add(head)
    return found


def naive_rank(scores, answer, known):
    rivals = [scores[e] for e in range(len(scores)) if e != answer and e not in known]
    return 1 + sum(s > scores[answer] for s in rivals) + sum(s == scores[answer] for s in rivals) / 2


@given(graphs, graphs)
def test_known_answers_are_those_of_a_loop(triples, others):
    known, asked_Q3, expected = (
        KnownAnswers([asked_of(triples)], ENTITIES, RELATIONS),
        asked_of(others),
        answers_of(triples),
    )
    row_P, entity_P = known.answers(asked_Q3)
    held_QE = known.holds(asked_Q3, torch.arange(ENTITIES).expand(len(asked_Q3), ENTITIES))
    for q, (about, relation, _) in enumerate(asked_Q3.tolist()):
        mine = expected.get((about, relation), set())
        assert set(entity_P[row_P == q].tolist()) == mine
        assert int((row_P == q).sum()) == len(mine)
        assert set(held_QE[q].nonzero()[:, 0].tolist()) == mine


@given(
    st.sampled_from(["complex", "transe"]),
    graphs,
    graphs,
    st.lists(coarse, min_size=(ENTITIES + 2 * RELATIONS) * DIM, max_size=(ENTITIES + 2 * RELATIONS) * DIM),
    st.integers(1, 40),
)
def test_ranks_are_those_of_a_loop_whatever_is_known_and_however_many_tie(name, known, test, values, cells):
    score = SCORES[name](DIM, 12.0)
    value_XD = torch.tensor(values, dtype=torch.float64).reshape(-1, DIM)
    e_ED, r_XC = value_XD[:ENTITIES], value_XD[ENTITIES:]
    asked_Q3, expected = asked_of(test), answers_of(known)
    filtered = KnownAnswers([asked_of(known)], ENTITIES, RELATIONS)
    found = ranks(asked_Q3, e_ED, r_XC, score=score, known=filtered, cells=cells).tolist()
    assert len(found) == len(asked_Q3)
    for rank, (about, relation, answer) in zip(found, asked_Q3.tolist(), strict=True):
        q_1D = score.queries(e_ED[about : about + 1], r_XC[relation : relation + 1])
        scores = [float(score.paired(q_1D, e_1D[None])) for e_1D in e_ED]
        assert rank == naive_rank(scores, answer, expected.get((about, relation), set()))


@given(st.sampled_from([Shared, Private]), graphs, graphs, st.integers(1, 9), st.integers(0, 99))
def test_no_answer_is_ever_a_negative_and_nobody_else_is_void(kind, triples, others, count, seed):
    asked_Q3, expected = asked_of(others), answers_of(triples)
    drawn = kind(count, KnownAnswers([asked_of(triples)], ENTITIES, RELATIONS))(
        asked_Q3, torch.Generator().manual_seed(seed)
    )
    entity_QK = drawn.entity.expand(len(asked_Q3), drawn.entity.shape[-1])
    for (about, relation, answer), entity_K, void_K in zip(
        asked_Q3.tolist(), entity_QK.tolist(), drawn.void_BK.tolist(), strict=True
    ):
        answers = expected.get((about, relation), set()) | {answer}
        assert void_K == [entity in answers for entity in entity_K]
