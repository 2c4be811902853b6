"""Deals each entity's words and numbers to the clients that have it: its features differ between them.

MMFeD3-HidE, section III-B: sentences and pictures of an entity by Dirichlet (.1). Here a word of its name or
description, and a numeric attribute, each goes to one client. All clients encode their words by one encoder.

Shapes: E entities of the whole graph, C clients, F features of a modality.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.sets import fb15k237
from models.contract import FloatArray
from models.knowledge_graph.data.graph import BoolArray, IntArray, KnowledgeGraph
from models.knowledge_graph.data.text_features import TextEncoder

_WORDS, _NUMBERS = range(2)
_DEAL: Final = 77


def by_client(
    graph: KnowledgeGraph, entities: Sequence[IntArray], seed: int, alpha: float
) -> Iterator[KnowledgeGraph]:
    """The whole graph with the features of each client in turn.

    Args:
        graph: of FB15K-237, with both of its modalities.
        entities: of each client, indices into the whole graph.
        seed: of the deal.
        alpha: of the Dirichlet distribution of an entity's words and numbers over the clients that have it.

    Raises:
        Misconfigured: the data set's texts are not here.
    """
    has_CE = np.zeros((len(entities), len(graph.entities)), np.bool_)
    for client, entity_E in enumerate(entities):
        has_CE[client, entity_E] = True
    texts = dealt_texts(_texts(graph.entities), has_CE, seed, alpha)
    numbers = dealt_numbers(graph.features[fb15k237.NUMERIC], has_CE, seed, alpha)
    names = tuple(graph.features)
    width = graph.features[fb15k237.TEXT].shape[1]
    for own_texts, numeric_EF in zip(texts, numbers, strict=True):
        made = {
            fb15k237.TEXT: _encoder(width).encode(own_texts),
            fb15k237.NUMERIC: numeric_EF,
        }
        features = {name: made[name] for name in names}
        present_EM = np.stack([features[name].any(axis=1) for name in names], axis=1)
        yield KnowledgeGraph(graph.entities, graph.relations, graph.triples_N3, features, present_EM)


def dealt_texts(texts: Sequence[str], has_CE: BoolArray, seed: int, alpha: float) -> list[list[str]]:
    """For each client the words of each entity that it was dealt, in their order."""
    rng = np.random.default_rng((seed, _DEAL, _WORDS))
    words = [text.split() for text in texts]
    dealt: list[list[list[str]]] = [[[] for _ in texts] for _ in has_CE]
    for entity, share_C in enumerate(_shares(has_CE, rng, alpha)):
        if share_C.any():
            holders = rng.choice(len(has_CE), len(words[entity]), p=share_C)
            for holder, word in zip(holders.tolist(), words[entity], strict=True):
                dealt[holder][entity].append(word)
    return [[" ".join(own) for own in client] for client in dealt]


def dealt_numbers(numeric_EF: FloatArray, has_CE: BoolArray, seed: int, alpha: float) -> list[FloatArray]:
    """For each client the values and marks of the attributes that it was dealt; zeros elsewhere.

    Args:
        numeric_EF: values of all attributes, then marks of those that an entity has.
        has_CE: which client has which entity.
        seed: of the deal.
        alpha: of the Dirichlet distribution.
    """
    rng = np.random.default_rng((seed, _DEAL, _NUMBERS))
    attributes = numeric_EF.shape[1] // 2
    holder_EA = np.full((len(numeric_EF), attributes), -1)
    for entity, share_C in enumerate(_shares(has_CE, rng, alpha)):
        if share_C.any():
            holder_EA[entity] = rng.choice(len(has_CE), attributes, p=share_C)
    both_EF = np.concatenate([holder_EA, holder_EA], axis=1)
    return [np.where(both_EF == client, numeric_EF, np.float32(0)) for client in range(len(has_CE))]


def _shares(has_CE: BoolArray, rng: np.random.Generator, alpha: float) -> Iterator[NDArray[np.float64]]:
    """For each entity the clients' shares: zero for those that do not have it, zeros if nobody does."""
    for has_C in has_CE.T:
        share_C = np.zeros(len(has_C))
        if has_C.any():
            share_C[has_C] = rng.dirichlet(np.full(has_C.sum(), alpha))
        yield share_C


def _texts(entities: Sequence[str]) -> list[str]:
    text = _all_texts()
    return [text[name] for name in entities]


@lru_cache(maxsize=1)
def _all_texts() -> dict[str, str]:
    names = fb15k237.load().graph.entities
    _, texts = fb15k237.read_texts(locations.file(fb15k237.FOLDER, fb15k237.TEXTS), names)
    return dict(zip(names, texts, strict=True))


@lru_cache(maxsize=1)
def _encoder(width: int) -> TextEncoder:
    """The encoder of the features that all clients share otherwise."""
    return TextEncoder.fit([*_all_texts().values()], width)
