"""Converts windows to rows of the store's file and back. Pure.

``x`` holds the values of the present modalities: of streams float32; of other kinds in the narrowest type
that loses nothing, which a byte before them names (``models.data.narrow_values``). ``context`` holds the
samples before the window, if the task has contexts: M counts of points (uint32), then the values of each
modality with points, as in ``x``; None if no sample is known, as in every file of a release without contexts.
So the stored windows stay valid if a task changes the length of its contexts.

``y`` is the class of ``label``; -1: the window has no label at all; -2: it has none, but labels of further
targets. ``targets`` holds those as JSON, by :func:`key_of`; None if there are none, as in every file of a
release without further targets.

Shapes: B windows, M modalities, C channels, T samples of a window, L of its context.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.contract import Context, WindowSet
from models.data import narrow_values, window_set
from models.data.holdout import WindowUse
from models.data.labels.targets import keys_of
from protocol.tasks.task import LABEL, Modality, Task

UNLABELLED: Final = -1
ONLY_OTHERS: Final = -2


class RowKind(NamedTuple):
    """What a window contains: one byte for each modality of the task, and the targets that have a label."""

    present: bytes
    labelled: tuple[str, ...]
    side: WindowUse = WindowUse.LEARNING


def anything(_kind: RowKind) -> bool:
    """True for every window."""
    return True


def has_label(kind: RowKind) -> bool:
    """Whether a window has a class of ``label``."""
    return LABEL in kind.labelled


def is_for_learning(kind: RowKind) -> bool:
    """Whether a window is not held back."""
    return kind.side is WindowUse.LEARNING


@dataclass(frozen=True)
class WindowRow:
    """One window."""

    y: int
    present: bytes
    quality: bytes
    x: bytes
    targets: str | None = None
    context: bytes | None = None
    start: float | None = None
    """In stream seconds; None in files of a release without it."""

    @property
    def values_bytes(self) -> int:
        """Bytes of the values of the window and its context."""
        return len(self.x) + len(self.context or b"")


def whole_bytes(task: Task) -> int:
    """Bytes of a window of this task in memory, with all modalities and contexts complete.

    On disk its values take hardly more, whatever they are.
    """
    values = sum(m.channels * task.context_samples(m.name) for m in task.modalities)
    return 4 * values + sum(m.kind != "stream" for m in task.modalities)


def labelled_for(y: int, targets: str | None, keys: Mapping[str, str]) -> tuple[str, ...]:
    """The targets that have a label in a window.

    Raises:
        ValueError: ``targets`` is damaged.
    """
    names = (LABEL,) if y >= 0 else ()
    return names if targets is None else (*names, *_read(targets, keys))


def _read(targets: str, keys: Mapping[str, str]) -> dict[str, float]:
    """Values by name; targets that the task does not have (any more) are left out."""
    values = json.loads(targets)
    if not isinstance(values, dict) or not all(isinstance(value, float) for value in values.values()):
        raise ValueError("labels of further targets: not a JSON object of numbers")
    return {keys[key]: value for key, value in values.items() if key in keys}


def rows_of(task: Task, windows: WindowSet, start_B: NDArray[np.float64] | None = None) -> list[WindowRow]:
    """Convert windows to rows; values of missing modalities are left out. ``start_B``: in stream seconds."""
    rows, keys = [], {name: key for key, name in keys_of(task).items()}
    for b in range(len(windows)):
        present = np.ascontiguousarray(windows.present_BM[b])
        quality = np.where(present, windows.quality_BM[b], np.float32(1)).astype(np.float32)
        x = b"".join(
            _values_bytes(modality, windows.x[modality.name][b])
            for m, modality in enumerate(task.modalities)
            if present[m]
        )
        labels = {keys[name]: float(y_B[b]) for name, y_B in windows.targets.items() if name in keys}
        labels = {key: value for key, value in labels.items() if np.isfinite(value)}
        y = int(windows.y_B[b])
        targets, context = json.dumps(labels) if labels else None, _context_bytes(task, windows, b)
        y = ONLY_OTHERS if targets and y < 0 else y
        start = None if start_B is None else float(start_B[b])
        rows.append(WindowRow(y, present.tobytes(), quality.tobytes(), x, targets, context, start))
    return rows


def _values_bytes(modality: Modality, x_CT: NDArray[np.float32]) -> bytes:
    return x_CT.astype("<f4").tobytes() if modality.kind == "stream" else narrow_values.encode(x_CT)


def _values_at(modality: Modality, data: bytes, offset: int, count: int) -> tuple[NDArray[np.float32], int]:
    """Values that :func:`_values_bytes` wrote, and the offset behind them."""
    if modality.kind == "stream":
        return np.frombuffer(data, "<f4", count, offset), offset + 4 * count
    return narrow_values.decode(data, offset, count)


def _context_bytes(task: Task, windows: WindowSet, b: int) -> bytes | None:
    """The context of a window; None if no sample is known."""
    if windows.context is None:
        return None
    counts_M, parts = np.zeros(len(task.modalities), "<u4"), []
    for m, modality in enumerate(task.modalities):
        window, x_CL = task.samples(modality.name), windows.context.x[modality.name][b]
        counts_M[m] = max(0, int(windows.context.points_BM[b, m]) - window)
        end = x_CL.shape[-1] - window
        if counts_M[m]:
            parts.append(_values_bytes(modality, x_CL[:, end - int(counts_M[m]) : end]))
    return counts_M.tobytes() + b"".join(parts) if counts_M.any() else None


def as_set(task: Task, rows: Sequence[WindowRow]) -> WindowSet:
    """Convert rows to windows, in their order.

    Raises:
        ValueError, IndexError: a row is damaged.
    """
    if not rows:
        return window_set.empty(task)
    shapes = [(m, m.channels, task.samples(m.name)) for m in task.modalities]
    x = {modality.name: np.zeros((len(rows), c, t), np.float32) for modality, c, t in shapes}
    present_BM = np.stack([np.frombuffer(row.present, np.bool_) for row in rows])
    keys = keys_of(task)
    targets = {name: np.full(len(rows), np.nan, np.float32) for name in keys.values()}
    for b, row in enumerate(rows):
        offset = 0
        for m, (modality, c, t) in enumerate(shapes):
            if present_BM[b, m]:
                values, offset = _values_at(modality, row.x, offset, c * t)
                x[modality.name][b] = values.reshape(c, t)
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
    """Contexts of these windows, as long as the task asks for and the row has samples."""
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
        offset = 4 * len(counts_M)
        for m, (modality, count) in enumerate(zip(task.modalities, counts_M.tolist(), strict=True)):
            if not count:
                continue
            x_CL, size = x[modality.name][b], modality.channels * count
            values, offset = _values_at(modality, row.context, offset, size)
            x_CN = values.reshape(modality.channels, count)
            end = x_CL.shape[-1] - task.samples(modality.name)
            n = min(count, end)
            x_CL[:, end - n : end] = x_CN[:, count - n :]
            points_BM[b, m] += n
        if offset != len(row.context):
            raise ValueError(f"a context of {len(row.context)} bytes, not {offset}")
    return Context(x, points_BM)
