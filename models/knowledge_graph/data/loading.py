"""A knowledge graph from files of facts, features and masks; skipped rows are counted.

Shapes: as in :mod:`models.knowledge_graph.data.graph`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.knowledge_graph.data.files import BOUNDS, Bounds, Masks, read_features, read_masks, read_triples
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.merging import ROOM, MergeCounts, MergeRoom, empty, merge
from protocol.errors import Misconfigured, Refused


def load(
    triples: Sequence[Path],
    features: Mapping[str, Path],
    masks: Path | None = None,
    bounds: Bounds = BOUNDS,
    room: MergeRoom = ROOM,
) -> tuple[KnowledgeGraph, MergeCounts]:
    """Read a knowledge graph.

    Args:
        triples: files of facts; entities and relations are numbered in the order of first mention.
        features: a file for each modality.
        masks: which features may be used; without, all of them.
        bounds: of each file.
        room: of the knowledge graph.

    Raises:
        Misconfigured: a file cannot be read as its kind, or masks name a modality without features.
    """
    graph, counts = empty(), MergeCounts()
    for path in triples:
        facts = read_triples(path, bounds)
        graph, new = merge(graph, facts.triples, room=room)
        counts += replace(new, duplicates=new.duplicates + facts.duplicates)
    for modality, path in features.items():
        try:
            graph, new = merge(graph, features={modality: read_features(path, bounds)}, room=room)
        except Refused as error:
            raise Misconfigured(f"{path}: {error.detail}") from None
        counts += new
    if masks is None:
        return graph, counts
    try:
        graph, strangers = masked(graph, read_masks(masks, bounds))
    except ValueError as error:
        raise Misconfigured(f"{masks}: {error}") from None
    return graph, counts + MergeCounts(strangers=strangers)


def masked(graph: KnowledgeGraph, masks: Masks) -> tuple[KnowledgeGraph, int]:
    """The knowledge graph without masked features, and the number of mask rows of unknown entities.

    An entity or modality that the masks do not name keeps its features.

    Raises:
        ValueError: a modality of the masks has no features.
    """
    if foreign := [name for name in masks.modalities if name not in graph.features]:
        raise ValueError(
            f"masks name modality {foreign[0]!r}; there are features of {', '.join(graph.features) or 'none'}"
        )
    at = {name: e for e, name in enumerate(graph.entities)}
    known = [(at[name], row) for row, name in enumerate(masks.entities) if name in at]
    index_n2 = np.array(known, np.int64).reshape(-1, 2)
    columns = np.array([graph.modalities.index(name) for name in masks.modalities], np.int64)
    keep_EM = np.ones_like(graph.present_EM)
    keep_EM[np.ix_(index_n2[:, 0], columns)] = masks.present_nM[index_n2[:, 1]]
    return graph.masked(keep_EM), len(masks.entities) - len(known)


def masks_of(graph: KnowledgeGraph) -> Masks:
    """The knowledge graph's own masks, as stored beside it."""
    return Masks(graph.entities, graph.modalities, graph.present_EM)
