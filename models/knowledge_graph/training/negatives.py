"""Negatives of a question's answer (N_i of equation 1). Imports torch.

Shapes: B questions, K negatives, E entities, P pairs.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.knowledge_graph.training.known_answers import KnownAnswers


@dataclass(frozen=True, eq=False)
class Drawn:
    """Negatives of a batch.

    Attributes:
        entity: int64; ``(K,)`` for all questions, or ``(B, K)`` for each its own.
        void_BK: bool, those that do not count: the answer itself, or another known one.
    """

    entity: Tensor
    void_BK: Tensor


class Draw(Protocol):
    """Draws a batch's negatives."""

    def __call__(self, asked_B3: Tensor, generator: torch.Generator) -> Drawn:
        """Negatives of questions (asked about, relation, answer)."""


class Shared:
    """K different entities for the whole batch: scores are one matrix product.

    Args:
        count: K; all entities if there are no more.
        known: answers that are never negatives.
    """

    def __init__(self, count: int, known: KnownAnswers) -> None:
        self._count = _positive(count)
        self._known = known
        self._place_E = torch.full((known.entities,), -1)  # of an entity among the negatives

    def __call__(self, asked_B3: Tensor, generator: torch.Generator) -> Drawn:
        """Negatives of questions (asked about, relation, answer)."""
        entity_K = torch.randperm(self._known.entities, generator=generator)[: self._count]
        self._place_E[entity_K] = torch.arange(len(entity_K))
        void_BK = torch.zeros(len(asked_B3), len(entity_K), dtype=torch.bool)
        own_B = torch.arange(len(asked_B3))
        for row_P, answer_P in ((own_B, asked_B3[:, 2]), self._known.answers(asked_B3)):
            place_P = self._place_E[answer_P]
            drawn_P = place_P >= 0
            void_BK[row_P[drawn_P], place_P[drawn_P]] = True
        self._place_E[entity_K] = -1
        return Drawn(entity_K, void_BK)


class Private:
    """K entities for each question, drawn with replacement: as in the paper, and ten to twenty times slower.

    Args:
        count: K.
        known: answers that are never negatives.
    """

    def __init__(self, count: int, known: KnownAnswers) -> None:
        self._count = _positive(count)
        self._known = known

    def __call__(self, asked_B3: Tensor, generator: torch.Generator) -> Drawn:
        """Negatives of questions (asked about, relation, answer)."""
        entity_BK = torch.randint(self._known.entities, (len(asked_B3), self._count), generator=generator)
        void_BK = self._known.holds(asked_B3, entity_BK) | (entity_BK == asked_B3[:, 2:])
        return Drawn(entity_BK, void_BK)


def _positive(count: int) -> int:
    if count < 1:
        raise ValueError(f"{count} negatives: at least one is needed")
    return count
