"""From predictions to an Evaluation, of all windows and of parts of them. Torch-free.

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
"""Of more modalities: each alone, and all but each."""


def judge(true_B: NDArray[np.int64], probabilities_BK: NDArray[np.float32]) -> Evaluation:
    """Accuracy, macro F1 (over classes that occur or are predicted) and log loss of labelled windows.

    Raises:
        Misconfigured: there is no labelled window to judge on.
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


def in_parts(
    task: Task, windows: WindowSet, judged: Callable[[WindowSet], Evaluation], kinds: Sequence[Part]
) -> dict[str, dict[str, Mapping[str, float]]]:
    """Metrics of parts of the windows, by kind and by name; parts that cannot be judged are left out.

    Args:
        task: says which modalities are read.
        windows: labelled; without groups there are none to tell apart.
        judged: evaluates the model.
        kinds: which parts.
    """
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    for kind in kinds:
        for name, part in (_by_group if kind == "group" else _by_modalities)(task, windows):
            try:
                found.setdefault(kind, {})[name] = judged(part).metrics
            except Misconfigured:  # none of it is labelled
                continue
    return found


def _by_group(_task: Task, windows: WindowSet) -> Iterator[tuple[str, WindowSet]]:
    if windows.group_B is None:
        return
    for name in np.unique(windows.group_B)[:MAX_GROUPS]:
        yield str(name) or "(none)", select(windows, windows.group_B == name)


def _by_modalities(task: Task, windows: WindowSet) -> Iterator[tuple[str, WindowSet]]:
    """The same windows as a device with fewer sensors would have them."""
    columns = [task.modality_names.index(name) for name in task.input_names]
    there = [m for m in columns if windows.present_BM[:, m].any()]
    sizes = range(1, len(there)) if len(there) <= _ALL_SUBSETS else sorted({1, len(there) - 1})
    for size in sizes:
        for kept in combinations(there, size):
            name = "+".join(task.modality_names[m] for m in kept)
            others = (m for m in range(len(task.modalities)) if m not in columns)  # what is only generated
            yield name, _only(task, windows, [*kept, *others])


def _only(task: Task, windows: WindowSet, kept: Sequence[int]) -> WindowSet:
    """Windows without the other modalities; those that have nothing left are out."""
    present_BM = np.zeros_like(windows.present_BM)
    present_BM[:, kept] = windows.present_BM[:, kept]
    x = {
        name: np.where(present_BM[:, m, None, None], windows.x[name], np.float32(0))
        for m, name in enumerate(task.modality_names)
    }
    left = replace(windows, x=x, present_BM=present_BM, context=None)
    return select(left, present_BM[:, [m for m in kept if task.modalities[m].input]].any(axis=1))
