"""The graphs of the study, divided among clients by relation. Seeded; NumPy only.

FB15K-237 has no pictures here: its modalities are ``text`` (n-grams of names and short descriptions) and
``numeric`` (attributes of MMKG), so that no figure is the paper's; what is compared is the order of methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    GraphConditions,
    HeldOutFacts,
    KnowledgeGraphFleet,
)
from lichen_lab.benchmarks.studies.mmfed3_hide.uneven_features import by_client
from lichen_lab.simulation.data.sets import fb15k237
from models.knowledge_graph.data.graph import IntArray, KnowledgeGraph
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.data.partition import KnowledgeGraphClient, part, partition
from protocol.errors import Misconfigured
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Task

WHOLE: Final = "FB15K-237"
BUSY: Final = "FB15K-237 top 1,000"
"""The subgraph of its entities of highest degree."""
ENTITIES: Final[Mapping[str, int | None]] = {WHOLE: None, BUSY: 1000}
"""Graph -> number of entities, by degree; None: all."""
_SMALL: Final = 150
_SECRET: Final = b"keys of the study, of one length"
CENTRE: Final = "centre"


def fleet(
    name: str, seed: int, conditions: GraphConditions, *, tuning: bool = False, small: bool = False
) -> KnowledgeGraphFleet:
    """The graph of that name as a fleet.

    Args:
        name: a key of :data:`ENTITIES`.
        seed: of deal, split and masks.
        conditions: of the run.
        tuning: judge on validation facts.
        small: few entities: checks that the run works, not its figures.

    Raises:
        Misconfigured: there is none, or its data set is not here.
    """
    if name not in ENTITIES:
        raise Misconfigured(f"no graph {name!r}; there are {', '.join(ENTITIES)}")
    made = dealt(_graph(_SMALL if small else ENTITIES[name]), name, seed, conditions)
    judges = tuple(replace(judge, test_N3=judge.valid_N3) for judge in made.judges)
    return replace(made, judges=judges) if tuning else made


@lru_cache(maxsize=2)
def _graph(entities: int | None) -> KnowledgeGraph:
    whole = fb15k237.load().graph
    return whole if entities is None else busiest(whole, entities)


def busiest(graph: KnowledgeGraph, count: int) -> KnowledgeGraph:
    """The facts among the entities with most facts, and their relations."""
    degree_E = np.bincount(graph.triples_N3[:, [0, 2]].ravel(), minlength=len(graph.entities))
    chosen_E = np.zeros(len(graph.entities), np.bool_)
    chosen_E[np.argsort(-degree_E, kind="stable")[:count]] = True
    among_N = chosen_E[graph.triples_N3[:, [0, 2]]].all(axis=1)
    left = graph.with_triples(graph.triples_N3[among_N])
    return part(left, np.unique(left.triples_N3[:, 1]))[0]


def dealt(graph: KnowledgeGraph, name: str, seed: int, conditions: GraphConditions) -> KnowledgeGraphFleet:
    """A graph as a fleet.

    Args:
        graph: all facts.
        name: of the fleet.
        seed: of deal, split and masks.
        conditions: of the run.
    """
    clients = partition(graph, conditions.clients, seed, conditions.rate)
    if conditions.uneven:
        clients = _uneven(graph, clients, seed, conditions)
    features = {modality: x_EF.shape[1] for modality, x_EF in graph.features.items()}
    task = bare_task(features)
    own = {f"gateway-{at}": KeyedGraph.of(client.graph, _SECRET, task) for at, client in enumerate(clients)}
    devices = own
    if conditions.who == "centre":
        devices = {CENTRE: KeyedGraph.of(together(graph, clients), _SECRET, task)}
    judges = tuple(
        HeldOutFacts(
            device if device in devices else CENTRE, keyed, client.valid_N3, client.test_N3, client.known()
        )
        for (device, keyed), client in zip(own.items(), clients, strict=True)
    )
    deal = f"{name} {len(graph)} {seed} {conditions.clients} {conditions.who}"
    return KnowledgeGraphFleet(
        name,
        deal,
        features,
        devices,
        judges,
        apart=conditions.who == "alone",
        replaced=conditions.own_rows == "replaced",
    )


def _uneven(
    graph: KnowledgeGraph, clients: Sequence[KnowledgeGraphClient], seed: int, conditions: GraphConditions
) -> tuple[KnowledgeGraphClient, ...]:
    """The same clients, each with the features that were dealt to it; facts and masks stay."""
    own = by_client(graph, [client.entity_E for client in clients], seed, conditions.uneven)
    return tuple(
        partition(each, conditions.clients, seed, conditions.rate)[number] for number, each in enumerate(own)
    )


def together(graph: KnowledgeGraph, clients: Sequence[KnowledgeGraphClient]) -> KnowledgeGraph:
    """All training facts of the clients, and all features that any client has, in one graph."""
    keep_EM = np.zeros_like(graph.present_EM)
    facts: list[IntArray] = []
    for client in clients:
        keep_EM[client.entity_E] |= client.graph.present_EM
        head_N, relation_N, tail_N = client.graph.triples_N3.T
        facts.append(
            np.stack(
                [client.entity_E[head_N], client.relation_R[relation_N], client.entity_E[tail_N]], axis=1
            )
        )
    return graph.masked(keep_EM).with_triples(np.concatenate(facts))


def bare_task(features: Mapping[str, int]) -> Task:
    """A task on knowledge graphs with these features, its options aside."""
    shape = KnowledgeGraphTask(features=tuple(Features(name=name, dim=dim) for name, dim in features.items()))
    return Task(name="completion", method="mmfed3_hide", graph=shape)
