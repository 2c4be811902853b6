"""Each method in three sizes: its task, and noise to learn from, because only costs are measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from edge_agent.identity import fleet_secret
from lichen_lab.benchmarks.support.fleet import ProcessFleet, noise_recording
from lichen_lab.benchmarks.support.tasks import noise_windows
from models.data import window_set
from models.knowledge_graph.data.files import FeatureTable, write_features, write_triples
from models.multimodal.network import two_branch_task
from protocol.tasks.labelling import Labelled
from protocol.tasks.network import Encoder, Network
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Target, Task

WINDOWS: Final = 500
_LABELLED: Final = 100
_SPEED: Final = 200.0
_ENTITIES: Final = 2000
_RELATIONS: Final = 50
_FACTS: Final = 10_000
_TEXT: Final = "text"
_TEXT_DIM: Final = 64
_SECRET: Final = fleet_secret.FILE


@dataclass(frozen=True)
class DeviceCase:
    """A task whose devices replay noise, all with the same number of windows.

    Attributes:
        method: name of the method.
        size: in words.
        task: without rounds' number and devices.
        windows: that a device holds.
    """

    method: str
    size: str
    task: Task
    windows: int = WINDOWS

    @property
    def material(self) -> str:
        """What a device learns from, in words."""
        return f"{self.windows} windows"

    def prepare(self, root: Path) -> None:
        """Write what the fleet shares into its folder."""
        if self.task.labelled is not None:
            file = root / "config" / self.task.labelled.file
            window_set.save(file, noise_windows(self.task, _LABELLED))

    def start(self, fleet: ProcessFleet, name: str, number: int, **tables: Any) -> None:
        """Start an agent with material of its own; ``tables`` as :meth:`ProcessFleet.agent`."""
        file = noise_recording(fleet.root / f"{name}.npz", self.task, round(1.2 * self.windows), seed=number)
        fleet.agent(name, file, speed=_SPEED, **tables)


@dataclass(frozen=True)
class GraphCase(DeviceCase):
    """Devices with random facts of their own, and features of half of their entities."""

    windows: int = _FACTS

    @property
    def material(self) -> str:
        """What a device learns from, in words."""
        return f"{self.windows:,} facts about {_ENTITIES:,} entities"

    def prepare(self, root: Path) -> None:
        """Make the fleet's secret."""
        fleet_secret.make(root / _SECRET)

    def start(self, fleet: ProcessFleet, name: str, number: int, **tables: Any) -> None:
        """Start an agent that reads its facts from files."""
        rng = np.random.default_rng(number)
        names = [f"entity {n}" for n in range(_ENTITIES)]
        facts, texts = fleet.root / f"{name}.tsv", fleet.root / f"{name}.text.npz"
        drawn = zip(
            rng.integers(_ENTITIES, size=self.windows),
            rng.integers(_RELATIONS, size=self.windows),
            rng.integers(_ENTITIES, size=self.windows),
            strict=True,
        )
        write_triples(facts, ((names[h], f"relation {r}", names[t]) for h, r, t in drawn))
        values = rng.standard_normal((_ENTITIES // 2, _TEXT_DIM)).astype(np.float32)
        write_features(texts, FeatureTable(tuple(names[: _ENTITIES // 2]), values))
        graph = {
            "triples": [str(facts)],
            "features": {_TEXT: str(texts)},
            "secret_file": str(fleet.root / _SECRET),
        }
        fleet.agent(name, None, roles=["observe", "train"], graph=graph, **without_windows(tables))


def without_windows(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables, without the limit on windows."""
    return {**tables, "learn": {k: v for k, v in tables.get("learn", {}).items() if k != "max_windows"}}


_REFERENCE: Final = two_branch_task()
_NETWORKS: Final = {
    "small": Network(
        encoders={
            "accelerometer": Encoder(kind="cnn1d", width=16, depth=4),
            "gyroscope": Encoder(kind="cnn1d", width=16, depth=4),
        },
        feature_dim=64,
        hidden_dim=64,
    ),
    "medium": _REFERENCE.network,
    "large": Network(
        encoders={
            "accelerometer": Encoder(kind="cnn1d", width=64, depth=5),
            "gyroscope": Encoder(kind="lstm", width=256, depth=1),
        },
        feature_dim=256,
        hidden_dim=512,
    ),
}
"""Size -> network of the methods that train one; the medium one has 223,622 parameters."""
_ROUTED: Final[Mapping[str, dict[str, Any]]] = {
    "small": {},
    "medium": {"width": 256, "latent": 64, "hidden": 128, "bottleneck": 32},
    "large": {"width": 768, "latent": 128, "hidden": 128, "bottleneck": 64},
}
"""Size -> options of DisentAFL; the large one has the paper's."""
_DIMS: Final = {"small": 64, "medium": 128, "large": 512}
"""Size -> numbers of an entity; the large one is the paper's."""


def _task(method: str, **changes: Any) -> Task:
    return Task(
        name=f"cost-{method}",
        method=method,
        labels=_REFERENCE.labels,
        modalities=_REFERENCE.modalities,
        rounds=Rounds(min_windows=WINDOWS),
        **{"config": {"epochs": 1}, **changes},
    )


def _cases() -> dict[tuple[str, str], DeviceCase]:
    found: list[DeviceCase] = []
    for size, network in _NETWORKS.items():
        found += [
            DeviceCase("qqr", size, _task("qqr", network=network)),
            DeviceCase("fedavg", size, _task("fedavg", network=network)),
            DeviceCase(
                "tactfl", size, _task("tactfl", network=network, labelled=Labelled(file="labelled.npz"))
            ),
        ]
    generation = Target(name="turning", kind="generation", modality="gyroscope")
    for size, options in _ROUTED.items():
        task = _task("disentafl", targets=(generation,), config={"epochs": 1, **options})
        found.append(DeviceCase("disentafl", size, task))
    for size, dim in _DIMS.items():
        task = Task(
            name="cost-mmfed3-hide",
            method="mmfed3_hide",
            graph=KnowledgeGraphTask(
                features=(Features(name=_TEXT, dim=_TEXT_DIM),),
                max_entities=_ENTITIES,
                max_relations=_RELATIONS,
                max_triples=_FACTS,
            ),
            rounds=Rounds(min_windows=100),
            config={"epochs": 1, "dim": dim, "warmup_rounds": 0, "imputer": "hide", "dual": True},
        )
        found.append(GraphCase("mmfed3_hide", size, task))
    return {(one.method, one.size): one for one in found}


_ALL: Final = _cases()
CASES: Final = tuple(_ALL.values())
MEDIUM: Final = _ALL["qqr", "medium"]
"""The network of 223,622 parameters."""
SMALLEST: Final = _ALL["qqr", "small"]
