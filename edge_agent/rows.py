"""A window as a row of the store's file: to bytes and back. Pure.

``y`` is the class of ``label``; -1: the window has no label at all; -2: it has none, but labels of further
targets. ``targets`` holds those as JSON, by :func:`key_of`; None where there are none, as in every file of a
release that knew no further targets.

Shapes: B windows, M modalities, C channels, T samples.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from models import windowset
from models.contract import WindowSet
from protocol.frame import digest
from protocol.task import LABEL, Target, Task

UNLABELLED: Final = -1
ONLY_OTHERS: Final = -2


class Kind(NamedTuple):
    """What a window has: a byte a modality of the task, and the targets that it is labelled for."""

    present: bytes
    labelled: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One window."""

    y: int
    present: bytes
    quality: bytes
    x: bytes
    targets: str | None = None


def key_of(target: Target) -> str:
    """Names a target and what its labels mean: under other classes an index would be another thing."""
    return f"{target.name}.{digest(repr((target.kind, target.labels, target.unit)).encode())[:8]}"


def keys_of(task: Task) -> dict[str, str]:
    """The names of a task's further targets that take labels, by key."""
    return {key_of(target): target.name for target in task.targets if target.kind != "generation"}


def labelled_for(y: int, targets: str | None, keys: Mapping[str, str]) -> tuple[str, ...]:
    """The targets that a window is labelled for.

    Raises:
        ValueError: ``targets`` is not what was written.
    """
    found = (LABEL,) if y >= 0 else ()
    return found if targets is None else (*found, *_read(targets, keys))


def _read(targets: str, keys: Mapping[str, str]) -> dict[str, float]:
    """Values by name; of targets that the task does not have (any more) none."""
    found = json.loads(targets)
    if not isinstance(found, dict) or not all(isinstance(value, float) for value in found.values()):
        raise ValueError("labels of further targets: no JSON object of numbers")
    return {keys[key]: value for key, value in found.items() if key in keys}


def rows_of(task: Task, windows: WindowSet) -> list[Row]:
    """Windows as rows; values of missing modalities are left out."""
    rows, named = [], {name: key for key, name in keys_of(task).items()}
    for b in range(len(windows)):
        present = np.ascontiguousarray(windows.present_BM[b])
        quality = np.where(present, windows.quality_BM[b], np.float32(1)).astype(np.float32)
        x = b"".join(
            windows.x[name][b].astype("<f4").tobytes()
            for m, name in enumerate(task.modality_names)
            if present[m]
        )
        given = {named[name]: float(y_B[b]) for name, y_B in windows.targets.items() if name in named}
        given = {key: value for key, value in given.items() if np.isfinite(value)}
        y = int(windows.y_B[b])
        targets = json.dumps(given) if given else None
        rows.append(
            Row(ONLY_OTHERS if targets and y < 0 else y, present.tobytes(), quality.tobytes(), x, targets)
        )
    return rows


def as_set(task: Task, rows: Sequence[Row]) -> WindowSet:
    """Rows as windows, in their order.

    Raises:
        ValueError, IndexError: a row is not what was written.
    """
    found = windowset.empty(task)
    if not rows:
        return found
    shapes = [(m.name, m.channels, task.samples(m.name)) for m in task.modalities]
    x = {name: np.zeros((len(rows), c, t), np.float32) for name, c, t in shapes}
    present_BM = np.stack([np.frombuffer(row.present, np.bool_) for row in rows])
    keys = keys_of(task)
    targets = {name: np.full(len(rows), np.nan, np.float32) for name in keys.values()}
    for b, row in enumerate(rows):
        at = 0
        for m, (name, c, t) in enumerate(shapes):
            if present_BM[b, m]:
                x[name][b] = np.frombuffer(row.x, "<f4", c * t, at).reshape(c, t)
                at += 4 * c * t
        if keys and row.targets is not None:
            for name, value in _read(row.targets, keys).items():
                targets[name][b] = value
    quality_BM = np.stack([np.frombuffer(row.quality, np.float32) for row in rows])
    y_B = np.maximum([row.y for row in rows], UNLABELLED).astype(np.int64)
    return WindowSet(x, present_BM, quality_BM, y_B, targets)
