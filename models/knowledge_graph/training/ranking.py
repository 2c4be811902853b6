"""Filtered ranks of true answers among all entities: Hits@1/3/10 and MRR. Imports torch.

Shapes: Q questions (two a triple), B of them at a time, E entities, V views (embeddings that are
scored apart), D entity dim, C relation dim, P pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from models.knowledge_graph.networks.multi_view import over_views
from models.knowledge_graph.networks.triple_scores import Score
from models.knowledge_graph.training.known_answers import KnownAnswers

_CELLS: Final = 2**22
"""Scores in memory at a time: 16 MiB in float32, and several times that while they are computed."""


@dataclass(frozen=True)
class Ranking:
    """Figures of a set of questions; fractions, 1 is best.

    Attributes:
        mrr: mean of 1 / rank.
        hits_1: share of ranks that are 1 (a tie for the first place is none).
        hits_3: share of ranks to 3.
        hits_10: share of ranks to 10.
        questions: Q; if there are none, it and all figures are 0.
    """

    mrr: float
    hits_1: float
    hits_3: float
    hits_10: float
    questions: int


def ranks(
    asked_Q3: Tensor, e: Tensor, r: Tensor, *, score: Score, known: KnownAnswers, cells: int = _CELLS
) -> Tensor:
    """``rank_Q`` float64 of each question's answer, 1 is best; other known answers are left out.

    Entities with the same score as the answer share the mean of their ranks: a model with equal scores ranks
    in the middle. A NaN score ranks before every answer, and last if it is the answer's.

    Args:
        asked_Q3: of :func:`models.knowledge_graph.training.known_answers.questions`; heads' and tails' alike.
        e: embeddings of all entities, ``e_ED``, or ``e_EVD``: several views rank by equation (1) over all E.
        r: of relations and, after them, their inverses (X is 2 R), ``r_XC``, or ``(X, V * C)``.
        score: f.
        known: answers of training, validation and test triples.
        cells: scores in memory at a time, at most (one question's E by view, if that is more).
    """
    with torch.no_grad():
        views = e.shape[1] if e.ndim == 3 else 1  # noqa: PLR2004 - E, V, D
        size = max(1, cells // max(1, len(e) * views))
        parts = [_ranks(asked_B3, e, r, score, known) for asked_B3 in torch.split(asked_Q3, size)]
        return torch.cat([*parts, torch.empty(0, dtype=torch.float64)])


def _ranks(asked_B3: Tensor, e: Tensor, r: Tensor, score: Score, known: KnownAnswers) -> Tensor:
    about_B, relation_B, answer_B = asked_B3.unbind(dim=1)
    s_BE = over_views(
        lambda e_ED, r_XC: score.score(score.queries(e_ED[about_B], r_XC[relation_B]), e_ED), e, r
    )
    own_B1 = s_BE.gather(1, answer_B[:, None])
    behind_BE, tied_BE = s_BE <= own_B1, s_BE == own_B1
    row_P, entity_P = known.answers(asked_B3)
    behind_BE[row_P, entity_P], tied_BE[row_P, entity_P] = True, False
    behind_BE.scatter_(1, answer_B[:, None], True)
    tied_BE.scatter_(1, answer_B[:, None], False)
    ahead_B = s_BE.shape[1] - behind_BE.sum(dim=1)
    return 1 + ahead_B + tied_BE.sum(dim=1, dtype=torch.float64) / 2


def ranking(rank_Q: Tensor) -> Ranking:
    """Figures of ranks; of heads' and tails' questions of the same triples, the average of both."""
    if not len(rank_Q):
        return Ranking(0.0, 0.0, 0.0, 0.0, 0)
    rank_Q = rank_Q.to(torch.float64)
    one, three, ten = (float((rank_Q <= most).double().mean()) for most in (1, 3, 10))
    return Ranking(float(rank_Q.reciprocal().mean()), one, three, ten, len(rank_Q))


def pooled(parts: Sequence[Ranking]) -> Ranking:
    """Figures of all clients, each weighted by its questions."""
    total = sum(part.questions for part in parts)

    def mean(figure: Callable[[Ranking], float]) -> float:
        return sum(figure(part) * part.questions for part in parts) / max(total, 1)

    return Ranking(
        mean(lambda part: part.mrr),
        mean(lambda part: part.hits_1),
        mean(lambda part: part.hits_3),
        mean(lambda part: part.hits_10),
        total,
    )
