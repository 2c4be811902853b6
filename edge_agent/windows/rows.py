"""A window as a row of the store's file: to bytes and back. Pure.

``x`` holds the values of the modalities that are present. ``context`` holds what came before the window,
where the task keeps contexts: M counts of points (uint32), then the values of each modality, as in ``x``;
None where nothing is known, as in every file of a release that kept windows alone. So a task may come to want
longer contexts, shorter ones or none, and its windows stay.

``y`` is the class of ``label``; -1: the window has no label at all; -2: it has none, but labels of further
targets. ``targets`` holds those as JSON, by :func:`key_of`; None where there are none, as in every file of a
release that knew no further targets.

Shapes: B windows, M modalities, C channels, T samples of a window, L of its context.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from models.contract import Context, WindowSet
from models.data import window_set
from models.data.labels.targets import keys_of
from protocol.tasks.task import LABEL, Task

UNLABELLED: Final = -1
ONLY_OTHERS: Final = -2


class RowKind(NamedTuple):
    """What a window has: a byte a modality of the task, and the targets that it is labelled for."""

    present: bytes
    labelled: tuple[str, ...]


def anything(_kind: RowKind) -> bool:
    """Every window."""
    return True


def has_label(kind: RowKind) -> bool:
    """A window with a class of ``label``."""
    return LABEL in kind.labelled


@dataclass(frozen=True)
class WindowRow:
    """One window."""

    y: int
    present: bytes
    quality: bytes
    x: bytes
    targets: str | None = None
    context: bytes | None = None

    @property
    def values_bytes(self) -> int:
        """Of the window and what came before it."""
        return len(self.x) + len(self.context or b"")


def whole_bytes(task: Task) -> int:
    """What a window of this task is in memory, all modalities and contexts whole."""
    return 4 * sum(m.channels * task.context_samples(m.name) for m in task.modalities)


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


def rows_of(task: Task, windows: WindowSet) -> list[WindowRow]:
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
        targets, context = json.dumps(given) if given else None, _before(task, windows, b)
        y = ONLY_OTHERS if targets and y < 0 else y
        rows.append(WindowRow(y, present.tobytes(), quality.tobytes(), x, targets, context))
    return rows


def _before(task: Task, windows: WindowSet, b: int) -> bytes | None:
    """What came before a window; None where nothing is known."""
    if windows.context is None:
        return None
    counts_M, parts = np.zeros(len(task.modalities), "<u4"), []
    for m, name in enumerate(task.modality_names):
        window, x_CL = task.samples(name), windows.context.x[name][b]
        counts_M[m] = max(0, int(windows.context.points_BM[b, m]) - window)
        end = x_CL.shape[-1] - window
        parts.append(x_CL[:, end - int(counts_M[m]) : end].astype("<f4").tobytes())
    return counts_M.tobytes() + b"".join(parts) if counts_M.any() else None


def as_set(task: Task, rows: Sequence[WindowRow]) -> WindowSet:
    """Rows as windows, in their order.

    Raises:
        ValueError, IndexError: a row is not what was written.
    """
    found = window_set.empty(task)
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
    windows = WindowSet(x, present_BM, quality_BM, y_B, targets)
    if task.window.context_s is None:
        return windows
    return replace(windows, context=_contexts(task, rows, windows))


def _contexts(task: Task, rows: Sequence[WindowRow], windows: WindowSet) -> Context:
    """Of rows that are these windows; as far back as the task wants and the row knows."""
    x, points = {}, np.array([task.samples(name) for name in task.modality_names])
    points_BM = np.where(windows.present_BM, points, 0)
    for name, x_BCT in windows.x.items():
        x[name] = np.zeros((*x_BCT.shape[:2], task.context_samples(name)), np.float32)
        x[name][..., -task.samples(name) :] = x_BCT
    for b, row in enumerate(rows):
        if row.context is None:
            continue
        counts_M = np.frombuffer(row.context, "<u4", len(task.modalities)).astype(np.int64)
        if (counts_M[~windows.present_BM[b]] > 0).any():
            raise ValueError("a context of a modality that its window does not have")
        at = 4 * len(counts_M)
        for m, (modality, count) in enumerate(zip(task.modalities, counts_M.tolist(), strict=True)):
            x_CL, size = x[modality.name][b], modality.channels * count
            x_CN = np.frombuffer(row.context, "<f4", size, at).reshape(modality.channels, count)
            at += x_CN.nbytes
            end = x_CL.shape[-1] - task.samples(modality.name)
            known = min(count, end)
            x_CL[:, end - known : end] = x_CN[:, count - known :]
            points_BM[b, m] += known
        if at != len(row.context):
            raise ValueError(f"a context of {len(row.context)} bytes, not {at}")
    return Context(x, points_BM)
