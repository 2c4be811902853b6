"""A knowledge graph that grows in use: new facts and features are merged, known names keep their index.

A row of an embedding, of a key table or of a moment of Adam stays with its entity after any merge: new names
follow the known ones, in the order of arrival. Dropped facts and rows are counted.

Shapes: as in :mod:`models.knowledge_graph.data.graph`; n incoming rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from models.contract import FloatArray
from models.knowledge_graph.data.files import FeatureTable, Triple
from models.knowledge_graph.data.graph import BoolArray, IntArray, KnowledgeGraph
from models.knowledge_graph.data.name_normalization import clean
from protocol.errors import Reason, Refused

_ENTITY_BITS: Final = 24
_RELATION_BITS: Final = 15
_NOTHING: Final[Mapping[str, FeatureTable]] = MappingProxyType({})


@dataclass(frozen=True)
class MergeRoom:
    """How large a knowledge graph may grow; a fact that needs more is dropped, and its new names with it.

    Raises:
        ValueError: more than :func:`codes` can distinguish.
    """

    entities: int = 1 << _ENTITY_BITS
    relations: int = 1 << _RELATION_BITS
    triples: int = 10_000_000

    def __post_init__(self) -> None:
        if self.entities > 1 << _ENTITY_BITS or self.relations > 1 << _RELATION_BITS:
            raise ValueError(f"at most {1 << _ENTITY_BITS} entities and {1 << _RELATION_BITS} relations")


ROOM: Final = MergeRoom()


@dataclass(frozen=True)
class MergeCounts:
    """Counts of what a merge added and dropped.

    Attributes:
        entities: new ones.
        relations: new ones.
        triples: new ones.
        rows: of features that were merged.
        replaced: of these, how many replaced older ones.
        duplicates: facts that were known, or repeated.
        no_room: facts beyond the :class:`MergeRoom`.
        unnamed: facts with an invalid name (:func:`models.knowledge_graph.data.name_normalization.clean`).
        strangers: rows of features or masks whose entity has no fact.
    """

    entities: int = 0
    relations: int = 0
    triples: int = 0
    rows: int = 0
    replaced: int = 0
    duplicates: int = 0
    no_room: int = 0
    unnamed: int = 0
    strangers: int = 0

    def __add__(self, other: "MergeCounts") -> "MergeCounts":
        return MergeCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(MergeCounts)))


def empty() -> KnowledgeGraph:
    """An empty knowledge graph, into which all can be merged."""
    return KnowledgeGraph.bare((), (), np.zeros((0, 3), np.int64))


def codes(triples_N3: IntArray) -> IntArray:
    """A number for each fact, (N,), equal where the facts are: 24 bits head, 15 relation, 24 tail."""
    shifts = np.array([_ENTITY_BITS + _RELATION_BITS, _ENTITY_BITS, 0])
    code_N: IntArray = np.bitwise_or.reduce(triples_N3 << shifts, axis=1)
    return code_N


def merge(
    graph: KnowledgeGraph,
    triples: Iterable[Triple] = (),
    features: Mapping[str, FeatureTable] = _NOTHING,
    room: MergeRoom = ROOM,
) -> tuple[KnowledgeGraph, MergeCounts]:
    """The knowledge graph with new facts, then new features; ``graph`` itself is not changed.

    Features of a known entity replace its older ones. A new modality is a new last column.

    Args:
        graph: the known one.
        triples: facts by name.
        features: by modality; of entities that have a fact by now.
        room: how large the knowledge graph may grow.

    Raises:
        Refused: WRONG_TENSORS or NON_FINITE: features of another width than the knowledge graph's, not one
            row for each entity, or not finite; nothing was merged.
    """
    grown, facts = _with_facts(graph, triples, room)
    taken = MergeCounts()
    for modality, new in features.items():
        grown, counts = _with_features(grown, modality, new)
        taken += counts
    return grown, facts + taken


def _with_facts(
    graph: KnowledgeGraph, triples: Iterable[Triple], room: MergeRoom
) -> tuple[KnowledgeGraph, MergeCounts]:
    entities = {name: e for e, name in enumerate(graph.entities)}
    relations = {name: r for r, name in enumerate(graph.relations)}
    known, fresh = _Known(graph), list[tuple[int, int, int]]()
    unnamed = no_room = duplicates = 0
    for triple in triples:
        try:
            head, relation, tail = map(clean, triple)
        except ValueError:
            unnamed += 1
            continue
        h, r, t = entities.get(head), relations.get(relation), entities.get(tail)
        if h is not None and r is not None and t is not None and known(_code(h, r, t)):
            duplicates += 1
            continue
        more = (h is None) + (t is None and tail != head)
        full = len(entities) + more > room.entities or len(relations) + (r is None) > room.relations
        if full or len(graph) + len(fresh) >= room.triples:
            no_room += 1
            continue
        found = (
            entities.setdefault(head, len(entities)),
            relations.setdefault(relation, len(relations)),
            entities.setdefault(tail, len(entities)),
        )
        known.new.add(_code(*found))
        fresh.append(found)
    new = MergeCounts(
        entities=len(entities) - len(graph.entities),
        relations=len(relations) - len(graph.relations),
        triples=len(fresh),
        duplicates=duplicates,
        no_room=no_room,
        unnamed=unnamed,
    )
    return _grown(graph, tuple(entities), tuple(relations), fresh), new


class _Known:
    """Finds known facts in one sorted array, which takes a tenth of the memory of a set."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._old_N = np.sort(codes(graph.triples_N3))
        self.new: set[int] = set()

    def __call__(self, code: int) -> bool:
        if code in self.new:
            return True
        at = int(np.searchsorted(self._old_N, code))
        return at < len(self._old_N) and int(self._old_N[at]) == code


def _code(h: int, r: int, t: int) -> int:
    return h << _ENTITY_BITS + _RELATION_BITS | r << _ENTITY_BITS | t


def _grown(
    graph: KnowledgeGraph,
    entities: tuple[str, ...],
    relations: tuple[str, ...],
    fresh: list[tuple[int, int, int]],
) -> KnowledgeGraph:
    if not fresh:
        return graph
    more = len(entities) - len(graph.entities)
    return KnowledgeGraph(
        entities,
        relations,
        np.concatenate([graph.triples_N3, np.array(fresh, np.int64)]),
        {modality: np.pad(x_EF, ((0, more), (0, 0))) for modality, x_EF in graph.features.items()},
        np.pad(graph.present_EM, ((0, more), (0, 0))),
    )


def _with_features(
    graph: KnowledgeGraph, modality: str, new: FeatureTable
) -> tuple[KnowledgeGraph, MergeCounts]:
    values_nF = _checked(graph, modality, new)
    at = {name: e for e, name in enumerate(graph.entities)}
    rows: dict[int, int] = {}
    strangers = 0
    for row, name in enumerate(new.entities):
        e = at.get(_spelled(name))
        if e is None:
            strangers += 1
        else:
            rows[e] = row  # the last row of a repeated entity
    x_EF, present_E = _column(graph, modality, values_nF.shape[1])
    to_n, from_n = np.array([*rows], np.int64), np.array([*rows.values()], np.int64)
    known = len(new.entities) - strangers
    counts = MergeCounts(
        rows=known, replaced=int(present_E[to_n].sum()) + known - len(rows), strangers=strangers
    )
    x_EF[to_n], present_E[to_n] = values_nF[from_n], True
    columns = dict(zip(graph.features, graph.present_EM.T, strict=True)) | {modality: present_E}
    present_EM = np.stack([*columns.values()], axis=1)
    features = {**graph.features, modality: x_EF}
    return replace(graph, features=features, present_EM=present_EM), counts


def _checked(graph: KnowledgeGraph, modality: str, new: FeatureTable) -> FloatArray:
    values_nF = new.values_nF
    wanted = (len(new.entities), *graph.features.get(modality, values_nF).shape[1:])
    if values_nF.ndim != 2 or values_nF.shape != wanted or not values_nF.shape[1]:  # noqa: PLR2004 - n, F
        raise Refused(
            Reason.WRONG_TENSORS,
            f"features of {modality!r} have shape {values_nF.shape}, not {len(new.entities)} rows as wide as "
            f"the knowledge graph's ({wanted[1:]})",
        )
    if not np.isfinite(values_nF).all():
        raise Refused(Reason.NON_FINITE, f"features of {modality!r} hold NaN or infinity")
    return values_nF


def _column(graph: KnowledgeGraph, modality: str, width: int) -> tuple[FloatArray, BoolArray]:
    """Copies of a modality's features and of their mask; empty for a new modality."""
    if modality not in graph.features:
        return np.zeros((len(graph.entities), width), np.float32), np.zeros(len(graph.entities), np.bool_)
    m = graph.modalities.index(modality)
    return graph.features[modality].copy(), graph.present_EM[:, m].copy()


def _spelled(name: str) -> str:
    """As the knowledge graph would write it; "" for an invalid name."""
    try:
        return clean(name)
    except ValueError:
        return ""
