"""UMLS split over the sites: facts from the start, later facts, held-out facts.

Shapes: as in :mod:`models.knowledge_graph.data.graph`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from lichen_lab.demo.plans.mmfed3_hide import devices
from lichen_lab.demo.plans.mmfed3_hide.devices import DemoSite
from lichen_lab.simulation.data.sets import small_graphs
from models.knowledge_graph.data import partition
from models.knowledge_graph.data.files import FeatureTable, Triple, write_features, write_triples
from models.knowledge_graph.data.graph import IntArray, KnowledgeGraph
from protocol.errors import Misconfigured, Refused, Transient

_HELD_OUT: Final = (1, 1)
"""Parts of a site's facts: known, and held out."""
_SPLIT, _MASK = range(2)


@dataclass(frozen=True, eq=False)
class GraphPart:
    """One site's part of the graph, by name.

    Attributes:
        now: facts from the start.
        later: facts that come while the fleet runs; none at most sites.
        held_out: facts that no gateway gets; they judge the answers.
        text: of the entities whose texts the site has.
        entities: how many it knows at the start and at the end.
    """

    now: tuple[Triple, ...]
    later: tuple[Triple, ...]
    held_out: tuple[Triple, ...]
    text: FeatureTable
    entities: tuple[int, int]


def umls() -> KnowledgeGraph:
    """The whole graph with features of its names; fetched first if it is missing.

    Raises:
        Misconfigured: it is not here and cannot be fetched; the message says what to do.
    """
    try:
        return small_graphs.load("umls", devices.TEXT_WIDTH).graph
    except Misconfigured:
        small_graphs.wheel()  # a wrong variable is not a missing data set
    try:
        small_graphs.fetch()
    except (Transient, Refused) as error:
        raise Misconfigured(f"data set umls is not here, and did not come: {error}") from None
    return small_graphs.load("umls", devices.TEXT_WIDTH).graph


def site_part(graph: KnowledgeGraph, site: DemoSite, seed: int) -> GraphPart:
    """A site's part: facts of its relations, half of them held out, half of the texts missing."""
    number = [one.name for one in devices.SITES].index(site.name)
    relation_R = np.sort([graph.relations.index(name) for name in site.relations])
    own, _ = partition.part(graph, relation_R)
    known_N3, held_N3 = partition.split(own.triples_N3, _HELD_OUT, (seed, number, _SPLIT))
    has_EM = partition.bernoulli(own, devices.TEXT_SHARE, (seed, number, _MASK))
    known_facts = _named(own, known_N3)
    late = {name for name in site.later if name in own.entities}
    now = tuple(one for one in known_facts if late.isdisjoint(one))
    # A question needs entities and a relation that the site knows.
    known, relations = _entities(known_facts), {relation for _, relation, _ in known_facts}
    held_out = tuple(one for one in _named(own, held_N3) if {one[0], one[2]} <= known and one[1] in relations)
    rows = np.flatnonzero(has_EM[:, 0]).tolist()
    return GraphPart(
        now=now,
        later=tuple(one for one in known_facts if one not in {*now}),
        held_out=held_out,
        text=FeatureTable(tuple(own.entities[e] for e in rows), own.features[devices.TEXT][rows]),
        entities=(len(_entities(now)), len(known)),
    )


def _entities(facts: tuple[Triple, ...]) -> set[str]:
    return {name for head, _, tail in facts for name in (head, tail)}


def _named(graph: KnowledgeGraph, triples_N3: IntArray) -> tuple[Triple, ...]:
    return tuple(
        (graph.entities[head], graph.relations[relation], graph.entities[tail])
        for head, relation, tail in triples_N3.tolist()
    )


def write(folder: Path, own: GraphPart) -> None:
    """Write the files that a gateway reads at the start."""
    folder.mkdir(parents=True, exist_ok=True)
    write_triples(folder / devices.TRIPLES, own.now)
    write_features(folder / devices.TEXT_FILE, own.text)


def append(folder: Path, facts: tuple[Triple, ...]) -> None:
    """Append facts to a gateway's file."""
    with (folder / devices.TRIPLES).open("a", encoding="utf-8", newline="\n") as file:
        file.writelines("\t".join(fact) + "\n" for fact in facts)


def questions(own: GraphPart, count: int, first: tuple[tuple[str, str], ...] = ()) -> list[tuple[str, str]]:
    """Questions to a gateway: heads and relations with held-out tails, the rarest relations first.

    Args:
        own: the site's part.
        count: at most so many.
        first: asked before all others, where they have held-out tails.
    """
    asked = list(dict.fromkeys((head, relation) for head, relation, _ in own.held_out))
    often = {relation: sum(one[1] == relation for one in own.now) for _, relation in asked}
    chosen = [one for one in first if one in asked]
    turns: dict[str, list[tuple[str, str]]] = {}
    for one in sorted(asked, key=lambda one: (often[one[1]], one)):
        if one not in chosen:
            turns.setdefault(one[1], []).append(one)
    while len(chosen) < count and any(turns.values()):
        chosen += [waiting.pop(0) for waiting in turns.values() if waiting]
    return chosen[:count]


def write_questions(path: Path, asked: list[tuple[str, str]]) -> None:
    """Write a file of questions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{head}\t{relation}\n" for head, relation in asked), encoding="utf-8")
