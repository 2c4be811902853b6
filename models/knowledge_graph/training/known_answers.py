"""Questions of triples, and their known answers: no negatives, and left out of rankings. Imports torch.

A triple gives two questions: (h, r, ?) for its tail, and (t, r + R, ?) for its head. Shapes: N triples, Q
questions (2 N), B of them, E entities, R relations, K entities, P pairs.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from models.knowledge_graph.data.graph import IntArray

_MOST: Final = 2**62
"""Limit of numbers that encode a question and an entity, or two entities and a relation, in an int64."""


def questions(triples_N3: IntArray | Tensor, relations: int) -> Tensor:
    """Both questions of every triple, int64 ``(2 N, 3)``: asked about, relation, answer; first all tails'.

    Args:
        triples_N3: int64; head, relation, tail.
        relations: R; the inverse of relation r is r + R.
    """
    # copy the array: it may be read-only, which tensors cannot be
    forth_N3 = triples_N3 if isinstance(triples_N3, Tensor) else torch.tensor(triples_N3)
    head_N, relation_N, tail_N = forth_N3.unbind(dim=1)
    return torch.cat((forth_N3, torch.stack((tail_N, relation_N + relations, head_N), dim=1)))


class KnownAnswers:
    """The known answers to each question.

    Args:
        asked: of :func:`questions`, one or several (training, validation, test); repeats count once.
        entities: E.
        relations: R.

    Raises:
        ValueError: an index out of range, or more combinations than fit 62 bits.
    """

    def __init__(self, asked: Sequence[Tensor], entities: int, relations: int) -> None:
        self.entities, self.relations = entities, relations
        if 2 * entities * entities * relations > _MOST:
            raise ValueError(
                f"{entities} entities and {relations} relations are too many to number in 62 bits"
            )
        all_Q3 = torch.cat([*asked, torch.empty(0, 3, dtype=torch.int64)])
        beyond_3 = torch.tensor([entities, 2 * relations, entities])
        if bool(((all_Q3 < 0) | (all_Q3 >= beyond_3)).any()):
            raise ValueError(f"indices do not fit {entities} entities and {relations} relations")
        self._pair_P = torch.unique(self._key(all_Q3) * entities + all_Q3[:, 2])
        self._answer_P = self._pair_P % entities
        self._key_X, count_X = torch.unique_consecutive(self._pair_P // entities, return_counts=True)
        self._start_X = torch.cat((torch.zeros(1, dtype=torch.int64), count_X.cumsum(0)))

    def __len__(self) -> int:
        """Different questions with their answers."""
        return len(self._pair_P)

    def answers(self, asked_B3: Tensor) -> tuple[Tensor, Tensor]:
        """All known answers to questions, also their own: ``row_P`` (of ``asked_B3``), ``entity_P``."""
        if not len(self._key_X):
            nothing_P = torch.empty(0, dtype=torch.int64)
            return nothing_P, nothing_P
        key_B = self._key(asked_B3)
        place_B = torch.searchsorted(self._key_X, key_B).clamp(max=len(self._key_X) - 1)
        start_B = self._start_X[place_B]
        count_B = torch.where(self._key_X[place_B] == key_B, self._start_X[place_B + 1] - start_B, 0)
        row_P = torch.repeat_interleave(torch.arange(len(key_B)), count_B)
        before_B = count_B.cumsum(0) - count_B  # pairs of the rows above
        return row_P, self._answer_P[torch.arange(len(row_P)) + (start_B - before_B)[row_P]]

    def holds(self, asked_B3: Tensor, entity_BK: Tensor) -> Tensor:
        """Bool ``(B, K)``: whether an entity is a known answer to its row's question."""
        if not len(self._pair_P):
            return torch.zeros_like(entity_BK, dtype=torch.bool)
        pair_BK: Tensor = self._key(asked_B3)[:, None] * self.entities + entity_BK
        place_BK = torch.searchsorted(self._pair_P, pair_BK).clamp(max=len(self._pair_P) - 1)
        held_BK: Tensor = self._pair_P[place_BK] == pair_BK
        return held_BK

    def _key(self, asked_B3: Tensor) -> Tensor:
        return asked_B3[:, 0] * (2 * self.relations) + asked_B3[:, 1]
