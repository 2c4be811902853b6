"""Evaluation of a device's own model: filtered ranks of triples that did not train. Imports torch.

Shapes: N triples, E entities, R relations (X is 2 R), V views, D and C their dims.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from models.contract import FloatArray
from models.knowledge_graph.data.embedding_tables import Tables, tables
from models.knowledge_graph.data.graph import BoolArray, IntArray
from models.knowledge_graph.data.initial_embeddings import hashed
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.networks.triple_scores import SCORES
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.knowledge_graph.training.ranking import Ranking, ranking, ranks
from models.methods.mmfed3_hide import MmFed3Config, config_of
from models.methods.mmfed3_hide.device_state import places
from protocol.errors import Misconfigured
from protocol.tasks.task import Task


def set_aside(graph: KeyedGraph, share: float) -> BoolArray:
    """Triples that evaluate and do not train, (N,): always the same, however the knowledge graph grows.

    None if all of them would be.
    """
    aside_N: BoolArray = _drawn(graph) < share
    return np.zeros_like(aside_N) if aside_N.all() else aside_N


def _drawn(graph: KeyedGraph) -> FloatArray:
    """A number from 0 to 1 of each triple, by its keys."""
    head_N, relation_N, tail_N = graph.triples_N3.T
    keys = graph.entity_keys_E16[head_N], graph.relation_keys_R16[relation_N], graph.entity_keys_E16[tail_N]
    return (hashed(0, *keys) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


def some(graph: KeyedGraph, aside_N: BoolArray, most: int) -> IntArray:
    """Of the triples set aside, at most so many, ``(N, 3)``."""
    found = np.flatnonzero(aside_N)
    order = np.argsort(_drawn(graph)[found], kind="stable")[:most]
    return graph.triples_N3[found[order]]


def judged(config: MmFed3Config, own: Tables, triples_N3: IntArray, known_N3: Sequence[IntArray]) -> Ranking:
    """Ranks by a device's tables, heads and tails alike.

    Args:
        config: says the score.
        own: the tables.
        triples_N3: asked; indices are rows of the tables.
        known_N3: all that are known to be true (training, validation and test); no rivals.
    """
    relations = len(own.relation_keys_R16)
    known = KnownAnswers(
        [questions(part_N3, relations) for part_N3 in known_N3], len(own.entities_EVD), relations
    )
    rank_Q = ranks(
        questions(triples_N3, relations),
        torch.tensor(own.entities_EVD),
        torch.tensor(own.relations_XC),
        score=SCORES[config.score](config.dim, config.gamma),
        known=known,
    )
    return ranking(rank_Q)


def ranked(
    task: Task,
    private: Mapping[str, FloatArray],
    graph: KeyedGraph,
    triples_N3: IntArray,
    known_N3: Sequence[IntArray],
) -> Ranking:
    """Ranks by what a device kept, for studies.

    Args:
        task: names the options.
        private: of the device's last round.
        graph: whose entities and relations the triples name by index; all of them must have trained.
        triples_N3: asked.
        known_N3: as of :func:`judged`.

    Raises:
        Misconfigured: the device has no tables, or they lack an entity or relation of the knowledge graph.
    """
    own = tables(private)
    if own is None:
        raise Misconfigured("the device keeps no tables yet: it has not trained")
    entity_E = places(own.entity_keys_E16, graph.entity_keys_E16)
    relation_R = places(own.relation_keys_R16, graph.relation_keys_R16)
    if entity_E.min(initial=0) < 0 or relation_R.min(initial=0) < 0:
        raise Misconfigured("the device's tables lack an entity or a relation of the knowledge graph")
    back_X = np.concatenate([relation_R, relation_R + len(own.relation_keys_R16)])
    aligned = Tables(
        own.entities_EVD[entity_E], graph.entity_keys_E16, own.relations_XC[back_X], graph.relation_keys_R16
    )
    return judged(config_of(task), aligned, triples_N3, known_N3)
