"""UMLS dealt out to the sites: what each knows from the start, what it is told later, what nobody is told.

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
"""Facts that a site has, and those that no gateway is ever told."""
_SPLIT, _MASK = range(2)


@dataclass(frozen=True, eq=False)
class GraphPart:
    """One site's part of the graph, by name.

    Attributes:
        now: facts from the start.
        later: facts that come while the fleet runs; none at most sites.
        held_out: facts that nobody is told: what answers are judged by.
        text: of the entities whose texts the site has.
        entities: how many it knows at the start, and in the end.
    """

    now: tuple[Triple, ...]
    later: tuple[Triple, ...]
    held_out: tuple[Triple, ...]
    text: FeatureTable
    entities: tuple[int, int]


def umls() -> KnowledgeGraph:
    """The whole graph with features of its names; where it is not here, it is fetched first.

    Raises:
        Misconfigured: it is not here and cannot be fetched; the message says what to do.
    """
    try:
        return small_graphs.load("umls", devices.TEXT_WIDTH).graph
    except Misconfigured:
        small_graphs.wheel()  # a wrong variable is no missing data set
    try:
        small_graphs.fetch()
    except (Transient, Refused) as error:
        raise Misconfigured(f"data set umls is not here, and did not come: {error}") from None
    return small_graphs.load("umls", devices.TEXT_WIDTH).graph


def part(graph: KnowledgeGraph, site: DemoSite, seed: int) -> GraphPart:
    """A site's part: the facts of its relations; half of them held out, half of the texts missing."""
    number = [one.name for one in devices.SITES].index(site.name)
    relation_R = np.sort([graph.relations.index(name) for name in site.relations])
    own, _ = partition.part(graph, relation_R)
    told_N3, held_N3 = partition.split(own.triples_N3, _HELD_OUT, (seed, number, _SPLIT))
    has_EM = partition.bernoulli(own, devices.TEXT_SHARE, (seed, number, _MASK))
    told = _named(own, told_N3)
    late = {name for name in site.later if name in own.entities}
    now = tuple(one for one in told if late.isdisjoint(one))
    # A question about what the site was never told is no question.
    known, relations = _entities(told), {relation for _, relation, _ in told}
    held_out = tuple(one for one in _named(own, held_N3) if {one[0], one[2]} <= known and one[1] in relations)
    rows = np.flatnonzero(has_EM[:, 0]).tolist()
    return GraphPart(
        now=now,
        later=tuple(one for one in told if one not in {*now}),
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
    """The files that a gateway reads at the start."""
    folder.mkdir(parents=True, exist_ok=True)
    write_triples(folder / devices.TRIPLES, own.now)
    write_features(folder / devices.TEXT_FILE, own.text)


def append(folder: Path, facts: tuple[Triple, ...]) -> None:
    """Tell a gateway more: lines behind those of its file."""
    with (folder / devices.TRIPLES).open("a", encoding="utf-8", newline="\n") as file:
        file.writelines("\t".join(fact) + "\n" for fact in facts)


def questions(own: GraphPart, count: int, first: tuple[tuple[str, str], ...] = ()) -> list[tuple[str, str]]:
    """Heads and relations with held-out tails: what a gateway is asked; the rarest relations first.

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
