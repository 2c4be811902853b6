"""Small graphs for tests: a house of rooms, sensors and people, and random ones."""

import numpy as np

from models.knowledge_graph.data.files import FeatureTable, Triple
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.merging import empty, merge

HOUSE: tuple[Triple, ...] = (
    ("boiler", "stands_in", "cellar"),
    ("thermometer 1", "measures", "boiler"),
    ("thermometer 1", "stands_in", "cellar"),
    ("Zoë", "looks_after", "boiler"),
    ("pump", "feeds", "boiler"),
    ("pump", "stands_in", "cellar"),
)
SECRET = b"a secret of the fleet, 32 bytes!"


def house(**features: dict[str, list[float]]) -> KnowledgeGraph:
    """The house, with features by modality and entity."""
    return merge(empty(), HOUSE, {name: named(values) for name, values in features.items()})[0]


def named(values: dict[str, list[float]]) -> FeatureTable:
    """Features by the entity's name."""
    return FeatureTable(tuple(values), np.array([*values.values()], np.float32))


def random_graph(
    entities: int = 60, relations: int = 12, triples: int = 500, seed: int = 0
) -> KnowledgeGraph:
    """Random facts, each once, with two modalities that some entities lack."""
    rng = np.random.default_rng(seed)
    all_N = rng.choice(entities * relations * entities, triples, replace=False)
    triples_N3 = np.stack(np.unravel_index(all_N, (entities, relations, entities)), axis=1)
    present_EM = rng.random((entities, 2)) < 0.8
    features = {
        name: (rng.normal(size=(entities, width)) * present_EM[:, m, None]).astype(np.float32)
        for m, (name, width) in enumerate((("text", 5), ("numeric", 3)))
    }
    names = (tuple(f"{kind}{i}" for i in range(count)) for kind, count in (("e", entities), ("r", relations)))
    return KnowledgeGraph(*names, triples_N3.astype(np.int64), features, present_EM)
