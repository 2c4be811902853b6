"""Splits one knowledge graph among clients, non-IID by relation, as in MMFeD3-HidE (sections III-B, III-C).

A client gets the facts of its own relations, which no other client has, and the entities of these facts,
which others have too; then its facts are split 8:1:1, and a mask says which entities' features it has.

Shapes: as in :mod:`models.knowledge_graph.data.graph`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from models.knowledge_graph.data.graph import BoolArray, IntArray, KnowledgeGraph

RATIO: Final = (8, 1, 1)
"""Facts to train on, to validate with, to test with."""
_DEAL, _SPLIT, _MASK = range(3)
"""Uses of a seed: each use draws its own numbers, so that one can change without the others."""


@dataclass(frozen=True, eq=False)
class KnowledgeGraphClient:
    """The data of one client.

    Attributes:
        graph: its own entities, relations and features; ``triples_N3`` are those to train on.
        valid_N3: to validate with, in the knowledge graph's own indices.
        test_N3: to test with.
        entity_E: int64, the index of each of its entities in the whole knowledge graph.
        relation_R: int64, likewise.
    """

    graph: KnowledgeGraph
    valid_N3: IntArray
    test_N3: IntArray
    entity_E: IntArray
    relation_R: IntArray

    def known(self) -> IntArray:
        """All its facts, (N, 3): those that a filtered rank leaves out."""
        return np.concatenate([self.graph.triples_N3, self.valid_N3, self.test_N3])


def partition(
    graph: KnowledgeGraph, clients: int, seed: int, rate: float = 1.0, ratio: Sequence[int] = RATIO
) -> tuple[KnowledgeGraphClient, ...]:
    """Split a knowledge graph among clients.

    Args:
        graph: all facts.
        clients: their number; numbers of relations differ by one at most.
        seed: of partition, split and masks; each client's split and mask depend on its own number alone.
        rate: r, of the features that are kept of each modality (Bernoulli, for each entity and client).
        ratio: of facts to train, validate and test.

    Raises:
        ValueError: no client, or more than there are relations.
    """
    return tuple(
        _client(graph, relation_R, (seed, c), rate, ratio)
        for c, relation_R in enumerate(by_relation(graph, clients, seed))
    )


def by_relation(graph: KnowledgeGraph, clients: int, seed: int) -> tuple[IntArray, ...]:
    """The relations of each client, ascending.

    Raises:
        ValueError: no client, or more than there are relations.
    """
    if not 1 <= clients <= len(graph.relations):
        raise ValueError(f"{len(graph.relations)} relations cannot be dealt to {clients} clients")
    dealt_R = np.random.default_rng((seed, _DEAL)).permutation(len(graph.relations))
    return tuple(np.sort(part) for part in np.array_split(dealt_R, clients))


def _client(
    graph: KnowledgeGraph, relation_R: IntArray, seed: tuple[int, int], rate: float, ratio: Sequence[int]
) -> KnowledgeGraphClient:
    own, entity_E = part(graph, relation_R)
    train_N3, valid_N3, test_N3 = split(own.triples_N3, ratio, (*seed, _SPLIT))
    kept = own.masked(bernoulli(own, rate, (*seed, _MASK)))
    return KnowledgeGraphClient(kept.with_triples(train_N3), valid_N3, test_N3, entity_E, relation_R)


def part(graph: KnowledgeGraph, relation_R: IntArray) -> tuple[KnowledgeGraph, IntArray]:
    """The facts of some relations, with the entities of these facts; and these entities' indices, (E,)."""
    triples_N3 = graph.triples_N3[np.isin(graph.triples_N3[:, 1], relation_R)]
    entity_E = np.unique(triples_N3[:, [0, 2]])
    own_N3 = np.stack(
        [
            np.searchsorted(entity_E, triples_N3[:, 0]),
            np.searchsorted(relation_R, triples_N3[:, 1]),
            np.searchsorted(entity_E, triples_N3[:, 2]),
        ],
        axis=1,
    )
    own = KnowledgeGraph(
        tuple(graph.entities[e] for e in entity_E.tolist()),
        tuple(graph.relations[r] for r in relation_R.tolist()),
        own_N3.astype(np.int64),
        {modality: x_EF[entity_E] for modality, x_EF in graph.features.items()},
        graph.present_EM[entity_E],
    )
    return own, entity_E


def split(triples_N3: IntArray, ratio: Sequence[int], seed: Sequence[int]) -> list[IntArray]:
    """Facts in random parts of these shares; in a part, in their order. None is lost or repeated.

    Raises:
        ValueError: a share is negative, or all are zero.
    """
    if min(ratio) < 0 or not sum(ratio):
        raise ValueError(f"shares {tuple(ratio)}: none may be negative, and one must be positive")
    ends = np.rint(np.cumsum(ratio) / sum(ratio) * len(triples_N3)).astype(np.int64)
    shuffled_N = np.random.default_rng(seed).permutation(len(triples_N3))
    return [triples_N3[np.sort(rows)] for rows in np.split(shuffled_N, ends[:-1])]


def bernoulli(graph: KnowledgeGraph, rate: float, seed: Sequence[int]) -> BoolArray:
    """A mask that keeps each entity's features of each modality with probability ``rate``, (E, M).

    With the same seed, a higher rate keeps everything that a lower one keeps.

    Raises:
        ValueError: the rate is no share.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate {rate} is not between 0 and 1")
    return np.random.default_rng(seed).random(graph.present_EM.shape) < rate
