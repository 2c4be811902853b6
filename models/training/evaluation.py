"""Evaluates predictions on all windows and on parts of them. Torch-free.

Shapes: B windows, M modalities, K classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from models.contract import Evaluation, WindowSet
from models.data.window_set import select
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

Part = Literal["group", "modalities"]
PARTS: Final[tuple[Part, ...]] = ("group", "modalities")
"""``group``: windows of one person or device. ``modalities``: all windows, with these modalities alone."""
MAX_GROUPS: Final = 128
_ALL_SUBSETS: Final = 3
"""With more modalities: each alone, and all but each."""


def judge(true_B: NDArray[np.int64], probabilities_BK: NDArray[np.float32]) -> Evaluation:
    """Accuracy, macro F1 (over classes that occur or are predicted) and log loss of labelled windows.

    Raises:
        Misconfigured: there is no labelled window.
    """
    labelled = true_B >= 0
    y, p_BK = true_B[labelled], probabilities_BK[labelled]
    if not len(y):
        raise Misconfigured("evaluation.data holds no labelled window (y is -1 everywhere)")
    classes = p_BK.shape[1]
    confusion = np.bincount(y * classes + p_BK.argmax(axis=1), minlength=classes**2).reshape(classes, classes)
    hits = confusion.diagonal()
    involved = confusion.sum(axis=0) + confusion.sum(axis=1)
    occurs = involved > 0
    metrics = {
        "accuracy": float(hits.sum() / len(y)),
        "macro_f1": float((2 * hits[occurs] / involved[occurs]).mean()),
        "loss": float(-np.log(np.maximum(p_BK[np.arange(len(y)), y], 1e-12)).mean()),
        "windows": float(len(y)),
    }
    return Evaluation(metrics=metrics, confusion_KK=confusion.tolist())


def of_classes(
    labels: Sequence[str], confusion_KK: Sequence[Sequence[int]]
) -> dict[str, dict[str, float | None]]:
    """By class that occurs or is predicted: ``windows``, ``recall``, ``precision`` and ``f1``.

    Args:
        labels: names of the classes.
        confusion_KK: counts; row: true class, column: predicted.

    Returns:
        None in place of a recall without a window of the class, and of a precision without a prediction.
    """
    found: dict[str, dict[str, float | None]] = {}
    predicted = [sum(column) for column in zip(*confusion_KK, strict=True)]
    for k, (label, row) in enumerate(zip(labels, confusion_KK, strict=True)):
        true, said, hits = sum(row), predicted[k], row[k]
        if true or said:
            found[label] = {
                "windows": true,
                "recall": hits / true if true else None,
                "precision": hits / said if said else None,
                "f1": 2 * hits / (true + said),
            }
    return found


def in_parts(
    task: Task, windows: WindowSet, judged: Callable[[WindowSet], Evaluation], kinds: Sequence[Part]
) -> dict[str, dict[str, Mapping[str, float]]]:
    """Metrics of parts of the windows, by kind and by name, without parts that cannot be evaluated.

    Args:
        task: names the modalities that are read.
        windows: labelled, with or without groups.
        judged: evaluates the model.
        kinds: which parts.
    """
    metrics: dict[str, dict[str, Mapping[str, float]]] = {}
    for kind in kinds:
        for name, part in (_by_group if kind == "group" else _by_modalities)(task, windows):
            try:
                metrics.setdefault(kind, {})[name] = judged(part).metrics
            except Misconfigured:  # no window of the part is labelled
                continue
    return metrics


def _by_group(_task: Task, windows: WindowSet) -> Iterator[tuple[str, WindowSet]]:
    if windows.group_B is None:
        return
    for name in np.unique(windows.group_B)[:MAX_GROUPS]:
        yield str(name) or "(none)", select(windows, windows.group_B == name)


def _by_modalities(task: Task, windows: WindowSet) -> Iterator[tuple[str, WindowSet]]:
    """The windows with the modalities of devices with fewer sensors."""
    columns = [task.modality_names.index(name) for name in task.input_names]
    present = [m for m in columns if windows.present_BM[:, m].any()]
    sizes = range(1, len(present)) if len(present) <= _ALL_SUBSETS else sorted({1, len(present) - 1})
    for size in sizes:
        for subset in combinations(present, size):
            name = "+".join(task.modality_names[m] for m in subset)
            others = (m for m in range(len(task.modalities)) if m not in columns)  # only generated
            yield name, _only(task, windows, [*subset, *others])


def _only(task: Task, windows: WindowSet, columns: Sequence[int]) -> WindowSet:
    """The windows restricted to some modalities; those without any of them are dropped."""
    present_BM = np.zeros_like(windows.present_BM)
    present_BM[:, columns] = windows.present_BM[:, columns]
    x = {
        name: np.where(present_BM[:, m, None, None], windows.x[name], np.float32(0))
        for m, name in enumerate(task.modality_names)
    }
    left = replace(windows, x=x, present_BM=present_BM, context=None)
    return select(left, present_BM[:, [m for m in columns if task.modalities[m].input]].any(axis=1))
