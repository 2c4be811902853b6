"""One epoch of a client on its own triples: equations (1) and (2). Imports torch.

The caller provides the entity embeddings: a table, or a fusion with imputed parts.

Shapes: Q questions (two a triple), B of a batch, K negatives, L scores (the answer first, then negatives), U
entities of a batch, V views (embeddings that are scored apart), D entity dim, C relation dim.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from models.knowledge_graph.networks.multi_view import over_views
from models.knowledge_graph.networks.sparse_embedding import Descent, EmbeddingRows
from models.knowledge_graph.networks.triple_scores import Score
from models.knowledge_graph.training.negatives import Draw
from models.training.local import batches

VOID: Final = -1e9
"""Score of a void negative. Finite: a divergence multiplies its logarithm by its probability, 0."""

Embed = Callable[[Tensor], Tensor]
"""``rows_U`` (int64, each once, ascending) -> ``e_UD`` or, by view, ``e_UVD``, with what backward needs."""


@dataclass(frozen=True, eq=False)
class TripleBatch:
    """Questions and their candidates, as places in ``rows_U``.

    Attributes:
        rows_U: int64; all entities of the batch, each once, ascending.
        about_B: place of the entity asked about.
        relation_B: relation (no place: a row of the relations' table).
        answer_B: place of the answer.
        negative: places of negatives, ``(K,)`` for all or ``(B, K)`` for each its own.
        void_BK: bool; negatives that do not count.
    """

    rows_U: Tensor
    about_B: Tensor
    relation_B: Tensor
    answer_B: Tensor
    negative: Tensor
    void_BK: Tensor

    def __len__(self) -> int:
        return len(self.about_B)

    def logits(self, score: Score, e: Tensor, r: Tensor) -> Tensor:
        """``s_BL``: f of the answer, then of the negatives; at most :data:`VOID` for void ones.

        Args:
            score: f.
            e: ``e_UD``, or ``e_UVD``; with more than one view these are logarithms of equation (1).
            r: ``r_BC``, or ``(B, V * C)``.
        """
        return over_views(lambda e_UD, r_BC: self._logits(score, e_UD, r_BC), e, r)

    def _logits(self, score: Score, e_UD: Tensor, r_BC: Tensor) -> Tensor:
        q_BD = score.queries(e_UD[self.about_B], r_BC)
        answer_B = score.paired(q_BD, e_UD[self.answer_B])
        if self.negative.ndim == 1:
            negative_BK = score.score(q_BD, e_UD[self.negative])
        else:
            negative_BK = score.picked(q_BD, e_UD, self.negative)
        return torch.cat((answer_B[:, None], negative_BK.masked_fill(self.void_BK, VOID)), dim=1)


Beside = Callable[[TripleBatch, Tensor, Tensor, Tensor], Tensor]
"""Further terms of the loss, weights included: of a batch, its entities, its relations and ``s_BL``."""


@dataclass(frozen=True)
class Epoch:
    """Figures of an epoch.

    Attributes:
        loss: equation (2) as a mean over questions, each at its batch's parameters.
        beside: mean of the further terms; 0 if there are none.
        questions: Q.
    """

    loss: float
    beside: float
    questions: int


def completion(logits_BL: Tensor) -> Tensor:
    """Equation (2) as a mean: cross entropy of the answer among its negatives (equation 1).

    Args:
        logits_BL: the answer's score first, then its negatives'.
    """
    return (logits_BL.logsumexp(dim=1) - logits_BL[:, 0]).mean()


def batch_of(asked_B3: Tensor, draw: Draw, generator: torch.Generator) -> TripleBatch:
    """A batch of questions (asked about, relation, answer) with negatives drawn for it."""
    drawn = draw(asked_B3, generator)
    count = len(asked_B3)
    everyone_P = torch.cat((asked_B3[:, 0], asked_B3[:, 2], drawn.entity.flatten()))
    rows_U, place_P = torch.unique(everyone_P, return_inverse=True)
    negative = place_P[2 * count :].view_as(drawn.entity)
    return TripleBatch(
        rows_U, place_P[:count], asked_B3[:, 1], place_P[count : 2 * count], negative, drawn.void_BK
    )


def shuffled(asked_Q3: Tensor, size: int, draw: Draw, generator: torch.Generator) -> Iterator[TripleBatch]:
    """Every question once, in batches of nearly equal length, at most ``size``."""
    for index_B in batches(len(asked_Q3), size, generator):
        yield batch_of(asked_Q3[index_B], draw, generator)


def epoch(
    asked_Q3: Tensor,
    embed: Embed,
    relations: EmbeddingRows,
    *,
    score: Score,
    draw: Draw,
    descent: Descent,
    generator: torch.Generator,
    size: int = 1024,
    beside: Beside | None = None,
) -> Epoch:
    """Every question once, one step for each batch.

    Args:
        asked_Q3: of :func:`models.knowledge_graph.training.known_answers.questions`.
        embed: entity embeddings of a batch.
        relations: table of 2 R rows, inverses after relations, C columns a view; among ``descent``'s tables
            if it is to learn.
        score: f.
        draw: negatives.
        descent: moves all that the loss depends on.
        generator: order and negatives; the same seed, tables and threads give the same bytes.
        size: questions in a batch, at most.
        beside: further terms of the loss.

    Raises:
        FloatingPointError: the loss is not finite; nothing has moved in that batch.
    """
    loss_sum = beside_sum = 0.0
    for batch in shuffled(asked_Q3, size, draw, generator):
        e, r = embed(batch.rows_U), relations.take(batch.relation_B)
        logits_BL = batch.logits(score, e, r)
        loss = completion(logits_BL)
        loss_sum += loss.item() * len(batch)
        if beside is not None:
            further = beside(batch, e, r, logits_BL)
            beside_sum += further.item() * len(batch)
            loss = loss + further
        if not math.isfinite(loss_sum + beside_sum):
            raise FloatingPointError(f"loss {loss.item()} is not finite: lower the learning rate")
        descent.descend(loss)
    count = len(asked_Q3)
    return Epoch(loss_sum / max(count, 1), beside_sum / max(count, 1), count)
