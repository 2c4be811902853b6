"""A device's graph on disk, for tests of the agent: facts, features, the fleet's secret, agent.toml."""

from collections.abc import Iterable
from pathlib import Path

from edge_agent.config.agent import AgentSettings, read
from edge_agent.identity import fleet_secret as secrets
from models.knowledge_graph.data.files import Triple, write_features
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from tests.support.methods.graph_cases import HOUSE, named

TEXT = {"boiler": [1.0, 0.0], "pump": [0.0, 1.0], "well": [1.0, 1.0]}
"""There is no fact about the well."""


def graph_task(**changes: object) -> Task:
    base = Task(
        name="house",
        method="mmfed3_hide",
        graph=KnowledgeGraphTask(features=(Features(name="text", dim=2),), top_k=3),
        rounds=Rounds(min_windows=4),
        config={"dim": 8, "negatives": 4, "batch": 16, "validation": 0.0},
    )
    return base.model_copy(update=changes)


def lines(triples: Iterable[Triple]) -> str:
    return "".join("\t".join(triple) + "\n" for triple in triples)


def write_house(folder: Path) -> Path:
    """Write facts, features and secret below ``folder``; returns the file of facts."""
    (folder / "facts.tsv").write_text(lines(HOUSE), encoding="utf-8")
    write_features(folder / "text.npz", named(TEXT))
    secrets.make(folder / "fleet.secret")
    return folder / "facts.tsv"


def graph_config(folder: Path, more: str = "", graph: str = "", triples: str = '["facts.tsv"]') -> Path:
    """``agent.toml`` of a device with the house; ``more``: keys at the top, ``graph``: of its table."""
    path = folder / "agent.toml"
    path.write_text(
        f'fleet = "f"\ndevice = "d"\nstate_dir = "state"\ncache_dir = "cache"\n{more}\n'
        f'[graph]\ntriples = {triples}\nsecret_file = "fleet.secret"\npoll_s = 0.05\n'
        f'features = {{ text = "text.npz" }}\n{graph}\n'
    )
    return path


def settings_of(folder: Path, **keys: str) -> AgentSettings:
    settings = read(graph_config(folder, **keys))
    for path in (settings.state_dir, settings.cache_dir):
        path.mkdir(exist_ok=True)
    return settings
