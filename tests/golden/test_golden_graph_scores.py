"""Stored values of scores, the completion loss, a table's step and ranks: a changed number, a changed method.

``losses/graph_scores.json`` holds what :func:`_computed` gave when the file was made. To add one, add it
there and run ``python -m tests.golden.test_golden_graph_scores`` once.
"""

import json
from pathlib import Path

import numpy as np
import torch

from models.knowledge_graph.networks.sparse_embedding import Descent, EmbeddingRows
from models.knowledge_graph.networks.triple_scores import SCORES
from models.knowledge_graph.training.epoch import batch_of, completion
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.negatives import Drawn
from models.knowledge_graph.training.ranking import ranks

FILE = Path(__file__).parent / "losses" / "graph_scores.json"
ENTITIES, RELATIONS = 7, 2


def _fixed(*shape: int, step: float) -> torch.Tensor:
    """Numbers without a generator: the same on every machine and release."""
    index = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return torch.sin(index * step + step).to(torch.float32).reshape(shape)


def _of(name: str) -> dict[str, torch.Tensor]:
    score = SCORES[name](4, 3.0)
    asked_Q3 = questions(torch.tensor([[0, 0, 1], [2, 1, 3], [4, 0, 5], [0, 0, 6]]), RELATIONS)
    known = KnownAnswers([asked_Q3], ENTITIES, RELATIONS)
    entities = EmbeddingRows(_fixed(ENTITIES, 4, step=0.7), lr=0.1)
    relations = EmbeddingRows(_fixed(2 * RELATIONS, score.relation_dim, step=1.3), lr=0.1)
    ranked_Q = ranks(asked_Q3, entities.value_ED, relations.value_ED, score=score, known=known)
    entity_K = torch.tensor([1, 3, 5])
    void_BK = known.holds(asked_Q3, entity_K.expand(len(asked_Q3), 3))
    batch = batch_of(asked_Q3, lambda *_: Drawn(entity_K, void_BK), torch.Generator())
    logits_BL = batch.logits(score, entities.take(batch.rows_U), relations.take(batch.relation_B))
    loss = completion(logits_BL)
    Descent(entities, relations).descend(loss)
    return {
        "1 scores, void ones at 0": torch.where(logits_BL < -1e6, 0.0, logits_BL),
        "2 completion": loss,
        "ranks": ranked_Q,
        "relations after a step": relations.value_ED,
        "span": torch.tensor(score.span),
    }


def _computed() -> dict[str, list[float]]:
    return {
        f"{name}: {what}": [round(float(v), 9) for v in tensor.detach().flatten()]
        for name in sorted(SCORES)
        for what, tensor in _of(name).items()
    }


def test_scores_loss_step_and_ranks_are_the_stored_ones():
    stored, computed = json.loads(FILE.read_text()), _computed()
    assert computed.keys() == stored.keys()
    for what, values in stored.items():
        np.testing.assert_allclose(computed[what], values, rtol=1e-5, atol=1e-5, err_msg=what)


if __name__ == "__main__":
    FILE.write_text(json.dumps(_computed(), indent=1) + "\n")
