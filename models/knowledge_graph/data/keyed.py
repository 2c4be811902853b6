"""A knowledge graph for the worker: facts and features by index, names as keyed hashes. Torch-free.

The agent knows names and the fleet's secret; the worker needs neither. Entity keys are sent (:mod:`keys`);
relation keys only link a device's relation embeddings to its relations from one round to the next, and are
not sent.

One npz file holds ``triples`` (N, 3), ``entity_keys`` (E, 16), ``relation_keys`` (R, 16), ``present`` (E, M)
and, by modality, ``x/<modality>`` (E, F). Shapes: as in :mod:`models.knowledge_graph.data.graph`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from models.contract import FloatArray
from models.knowledge_graph.data.graph import BoolArray, IntArray, KnowledgeGraph
from models.knowledge_graph.data.keys import KEY_BYTES, RELATIONS, Keys, keys_for
from models.tensors import read_arrays, write_npz
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

if TYPE_CHECKING:
    from numpy.typing import NDArray

_X: Final = "x/"
_KEYS: Final = ("triples", "entity_keys", "relation_keys", "present")


@dataclass(frozen=True, eq=False)
class KeyedGraph:
    """One device's knowledge graph without names.

    Attributes:
        entity_keys_E16: uint8, each once; an entity's index is its place here.
        relation_keys_R16: uint8, each once; never on the wire.
        triples_N3: int64; head, relation, tail as indices.
        features: modality -> ``x_EF`` float32, in the task's order; zeros where it is absent.
        present_EM: bool, columns in the task's order of modalities.
    """

    entity_keys_E16: Keys
    relation_keys_R16: Keys
    triples_N3: IntArray
    features: Mapping[str, FloatArray]
    present_EM: BoolArray

    def __len__(self) -> int:
        """Triples."""
        return len(self.triples_N3)

    @classmethod
    def of(cls, graph: KnowledgeGraph, secret: bytes, task: Task) -> "KeyedGraph":
        """A knowledge graph keyed by the fleet's secret, with the task's modalities, absent or not.

        Raises:
            Misconfigured: features have another width than the task's, two names have one key, or the secret
                is too short.
        """
        return cls(
            keys_for(secret, graph.entities),
            keys_for(secret, graph.relations, RELATIONS),
            graph.triples_N3,
            *_of_task(graph, task),
        )


def _of_task(graph: KnowledgeGraph, task: Task) -> tuple[dict[str, FloatArray], BoolArray]:
    if task.graph is None:
        raise Misconfigured(f"task {task.name!r} is of windows: it has no table [graph]")
    count = len(graph.entities)
    features: dict[str, FloatArray] = {}
    present_EM = np.zeros((count, len(task.graph.features)), np.bool_)
    for m, one in enumerate(task.graph.features):
        x_EF = graph.features.get(one.name, np.zeros((count, one.dim), np.float32))
        if x_EF.shape[1] != one.dim:
            raise Misconfigured(
                f"features of {one.name!r} have {x_EF.shape[1]} numbers, task {task.name!r} says "
                f"graph.features.{one.name}.dim = {one.dim}"
            )
        features[one.name] = x_EF
        if one.name in graph.features:
            present_EM[:, m] = graph.present_EM[:, graph.modalities.index(one.name)]
    return features, present_EM


def save(path: Path, graph: KeyedGraph) -> None:
    """Write a knowledge graph as npz, atomically."""
    arrays: dict[str, NDArray[Any]] = {f"{_X}{name}": x_EF for name, x_EF in graph.features.items()}
    arrays |= {"triples": graph.triples_N3, "present": graph.present_EM}
    arrays |= {"entity_keys": graph.entity_keys_E16, "relation_keys": graph.relation_keys_R16}
    write_npz(Path(path), arrays)


def load(path: Path, task: Task) -> KeyedGraph:
    """Read a knowledge graph, and compare it with the task.

    Raises:
        Misconfigured: no such file, or it is not what :func:`save` writes for such a task; the message names
            file and key.
    """
    data = read_arrays(Path(path), "a knowledge graph")
    shape = task.graph
    names = () if shape is None else task.modality_names
    wanted = {*_KEYS, *(f"{_X}{name}" for name in names)}
    if shape is None or set(data) != wanted:
        odd = sorted(wanted.symmetric_difference(data))
        raise Misconfigured(
            f"{path}: no knowledge graph for task {task.name!r}: keys {odd} are missing or foreign"
        )
    triples, entities, relations = (
        np.atleast_1d(data[name]).shape[0] for name in ("triples", "entity_keys", "relation_keys")
    )
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "triples": ("i8", (triples, 3)),
        "entity_keys": ("u1", (entities, KEY_BYTES)),
        "relation_keys": ("u1", (relations, KEY_BYTES)),
        "present": ("b1", (entities, len(names))),
        **{f"{_X}{one.name}": ("f4", (entities, one.dim)) for one in shape.features},
    }
    for name, (kind, size) in shapes.items():
        if data[name].dtype != np.dtype(kind) or data[name].shape != size:
            raise Misconfigured(
                f"{path}: key {name!r} is {data[name].dtype} {data[name].shape}, not {np.dtype(kind)} {size}"
            )
    triples_N3 = data["triples"]
    most = np.array([entities, relations, entities])
    if len(triples_N3) and ((triples_N3 < 0) | (triples_N3 >= most)).any():
        raise Misconfigured(
            f"{path}: key 'triples' has indices beyond {entities} entities, {relations} relations"
        )
    features = {name: data[f"{_X}{name}"] for name in names}
    if not all(np.isfinite(x_EF).all() for x_EF in features.values()):
        raise Misconfigured(f"{path}: features hold NaN or infinity")
    return KeyedGraph(
        data["entity_keys"], data["relation_keys"], triples_N3, features, np.asarray(data["present"])
    )
