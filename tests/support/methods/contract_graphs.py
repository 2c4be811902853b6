"""A ring of entities of which each device knows a part: material of contract cases on knowledge graphs."""

import numpy as np
from pydantic import JsonValue

from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.keyed import KeyedGraph
from models.spec import MethodSpec
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Task

SECRET = b"a secret of the fleet, 32 bytes!"
THINGS = 24
STEPS = (1, 2, 5)
"""Relation r leads from entity i to entity i + STEPS[r]: from some of these facts the others follow."""
SMALL: dict[str, dict[str, JsonValue]] = {
    "mmfed3_hide": {"dim": 16, "batch": 32, "negatives": 16, "epochs": 6, "lr": 0.05, "validation": 0.2},
}
"""By method, options that make it small enough for a ring."""


def task_of(spec: MethodSpec, config: dict[str, JsonValue]) -> Task:
    graph = KnowledgeGraphTask(
        features=(Features(name="text", dim=5), Features(name="picture", dim=3)), max_entities=200
    )
    return Task(name="contract", method=spec.name, graph=graph, config=SMALL.get(spec.name, {}) | config)


def graph_of(task: Task, seed: int, missing: float = 0.0) -> KeyedGraph:
    """Five entities of six, nine facts of ten about them, with relation names that no other seed has."""
    rng = np.random.default_rng(seed)
    thing_E = rng.permutation(THINGS)[: THINGS * 5 // 6]
    place = {int(thing): i for i, thing in enumerate(thing_E)}
    triples = [
        (place[thing], r, place[(thing + step) % THINGS])
        for thing in place
        for r, step in enumerate(STEPS)
        if (thing + step) % THINGS in place and rng.random() < 0.9
    ]
    parts = () if task.graph is None else task.graph.features
    present_EM = np.ones((len(place), len(parts)), np.bool_)
    present_EM[:, 1:2] = rng.random((len(place), 1)) >= missing
    angle_E1 = 2 * np.pi * thing_E[:, None] / THINGS
    features = {
        part.name: np.where(present_EM[:, m, None], np.cos(angle_E1 * np.arange(1, part.dim + 1) / 2), 0.0)
        for m, part in enumerate(parts)
    }
    graph = KnowledgeGraph(
        tuple(f"thing {thing}" for thing in thing_E),
        tuple(f"leads {step} on, says {seed}" for step in STEPS),
        np.array(triples, np.int64),
        {name: x_EF.astype(np.float32) for name, x_EF in features.items()},
        present_EM,
    )
    return KeyedGraph.of(graph, SECRET, task)


def empty(task: Task) -> KeyedGraph:
    """No fact about anything."""
    nobody = np.zeros((0, 3), np.int64)
    features = {name: np.zeros((0, width), np.float32) for name, width in (("text", 5), ("picture", 3))}
    return KeyedGraph.of(KnowledgeGraph((), (), nobody, features, np.zeros((0, 2), np.bool_)), SECRET, task)


def secrets(graph: KeyedGraph) -> list[bytes]:
    """Bytes that no message of a device may contain: keys of relations, and rows of features."""
    rows = [row for x_EF in graph.features.values() for row in x_EF[x_EF.any(axis=1)]]
    written = [row.astype(kind).tobytes() for row in rows for kind in (np.float32, np.float16, np.float64)]
    return [bytes(key) for key in graph.relation_keys_R16] + written
