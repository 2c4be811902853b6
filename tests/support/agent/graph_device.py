"""A device with a graph and embeddings of its own, as training would leave them, and a real exported bundle.

TransE, so that a perfectly learned relation can be made by hand: a tail is its head plus the relation.
"""

from pathlib import Path

import numpy as np

from edge_agent.config.agent import AgentSettings, InferSettings
from edge_agent.config.knowledge_graph import KnowledgeGraphSettings
from edge_agent.identity.fleet_secret import secret_path
from edge_agent.knowledge_graph.reader import KnowledgeGraphReader, KnowledgeGraphSnapshot
from edge_agent.storage.private_tensors import PrivateTensors
from models.knowledge_graph.data.embedding_tables import Tables
from models.knowledge_graph.data.files import write_triples
from protocol.tasks.task import Task
from tests.support.methods.graph_cases import HOUSE, SECRET

D, TOP_K = 4, 3
TASK = Task.model_validate(
    {
        "name": "house",
        "method": "mmfed3_hide",
        "graph": {"top_k": TOP_K},
        "config": {"score": "transe", "fusion": "structure", "imputer": "none", "dim": D},
    }
)


def settings_of(folder: Path, **infer: object) -> AgentSettings:
    """A device whose facts are the house's; the files are written."""
    settings = AgentSettings(
        fleet="f",
        device="d",
        state_dir=folder / "state",
        cache_dir=folder / "cache",
        infer=InferSettings.model_validate({"output": folder / "answers.jsonl", **infer}),
        graph=KnowledgeGraphSettings(triples=(folder / "house.tsv",), queries=folder / "queries.tsv"),
    )
    folder.mkdir(exist_ok=True)
    write_triples(folder / "house.tsv", HOUSE)
    path = secret_path(settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SECRET.hex())
    return settings


def snapshot_of(settings: AgentSettings, task: Task = TASK) -> KnowledgeGraphSnapshot:
    """The graph as its files are now."""
    assert settings.graph is not None
    found = KnowledgeGraphReader(settings.graph, secret_path(settings), task, ()).read_if_changed(0.0)
    assert found is not None
    return found


def tables_of(snapshot: KnowledgeGraphSnapshot, learned: str, *, dim: int = D, seed: int = 0) -> Tables:
    """Embeddings with which ``learned`` leads from each entity to the next; the rows in another order.

    Entities are on a line, in the order of the graph: entity e is e steps away from the first one.
    """
    rng = np.random.default_rng(seed)
    graph, keyed = snapshot.graph, snapshot.keyed
    step, count = rng.normal(size=dim), len(graph.relations)
    e_EVD = np.arange(len(graph.entities))[:, None, None] * step
    r_XC = 100 * rng.normal(size=(2 * count, dim))
    r_XC[graph.relations.index(learned)], r_XC[count + graph.relations.index(learned)] = step, -step
    order = rng.permutation(len(e_EVD))
    return Tables(
        e_EVD[order].astype(np.float32),
        keyed.entity_keys_E16[order],
        r_XC.astype(np.float32),
        keyed.relation_keys_R16,
    )


def learn(settings: AgentSettings, tables: Tables, task: Task = TASK) -> None:
    """The result of a round of training, with tensors that inference does not read."""
    more = {"own/structure": np.zeros((2, 2), np.float32)}
    PrivateTensors(settings.state_dir / "private").write(task.name, tables.tensors() | more)
