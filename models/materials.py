"""What devices learn from: windows of streams, or a knowledge graph (``MethodSpec.material``). Torch-free.

Daemons and the worker pass a method's material on by its kind, and depend on it only here: its file in a
job's folder, and its statistics in an update's header.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from models.contract import WindowSet
from models.data import window_set
from models.knowledge_graph.data import keyed
from models.knowledge_graph.data.keyed import KeyedGraph
from protocol.tasks.task import Task

MaterialName = Literal["windows", "graph"]
Material = WindowSet | KeyedGraph


@dataclass(frozen=True)
class HeaderStatistics:
    """Statistics of the training material in an update's header.

    Attributes:
        samples: windows, or triples.
        counts: per modality, labelled windows by class in which it is present; of a knowledge graph one
            number, the triples of which an entity has it.
        missing: per modality, the share of samples that lack it.
        quality: per modality that occurs, 0 to 1.
    """

    samples: int
    counts: Mapping[str, tuple[int, ...]]
    missing: Mapping[str, float]
    quality: Mapping[str, float]


@dataclass(frozen=True)
class MaterialKind:
    """A kind of material.

    Attributes:
        file: its name in a job's folder.
        noun: of one sample, in the plural.
        save: writes it atomically.
        load: reads it, checked against a task; raises Misconfigured.
        told: its statistics for a header, for these of the task's modalities.
    """

    file: str
    noun: str
    save: Callable[[Path, Any], None]
    load: Callable[[Path, Task], Any]
    told: Callable[[Any, Task, Sequence[str]], HeaderStatistics]


def _of_windows(windows: WindowSet, task: Task, modalities: Sequence[str]) -> HeaderStatistics:
    counts = window_set.counts(windows, task)
    columns = {name: m for m, name in enumerate(task.modality_names)}
    present = {name: windows.present_BM[:, columns[name]] for name in modalities}
    return HeaderStatistics(
        samples=len(windows),
        counts={name: counts[name] for name in modalities},
        missing={name: float(1.0 - p.mean()) if len(p) else 1.0 for name, p in present.items()},
        quality={
            name: min(max(float(windows.quality_BM[p, columns[name]].mean()), 0.0), 1.0)
            for name, p in present.items()
            if p.any()
        },
    )


def _of_graph(graph: KeyedGraph, task: Task, modalities: Sequence[str]) -> HeaderStatistics:
    ends_N2 = graph.triples_N3[:, [0, 2]]
    has = {
        name: int(graph.present_EM[ends_N2, m].any(axis=1).sum())
        for m, name in enumerate(task.modality_names)
        if name in modalities
    }
    count = len(graph)
    return HeaderStatistics(
        samples=count,
        counts={name: (has[name],) for name in modalities},
        missing={name: 1.0 - has[name] / count if count else 1.0 for name in modalities},
        quality=dict.fromkeys(modalities, 1.0),
    )


KINDS: Final[Mapping[MaterialName, MaterialKind]] = MappingProxyType(
    {
        "windows": MaterialKind("windows.npz", "windows", window_set.save, window_set.load, _of_windows),
        "graph": MaterialKind("graph.npz", "triples", keyed.save, keyed.load, _of_graph),
    }
)
