"""Sets of windows on disk and in memory: save, load, select, join. Torch-free.

One npz file holds ``x/<modality>`` (``x_BCT`` float32), ``present`` (B, M), ``quality`` (B, M), ``y`` (B,)
and, by further target, ``target/<name>`` (B,; class index or value, NaN: unlabelled); optionally ``group``
(B,; text: the window's group, such as a person). Contexts, if stored with the windows, are laid out as in
``models.data.streams.context``. Columns of ``present`` and ``quality`` are in the task's modality order.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models import npz
from models.contract import FloatArray, WindowSet
from models.data.streams import context
from models.data.streams.frame_sizes import size_of
from models.tensors import read_arrays, write_npz
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Task

_X = "x/"
_TARGET = "target/"
_GROUP = "group"
_KEYS = ("present", "quality", "y")
_MAX_GROUP = 128
_KINDS = {"y": ("iu", "integers"), _GROUP: ("U", "text")}


def empty(task: Task) -> WindowSet:
    """An empty set in the task's shapes."""
    count = len(task.modalities)
    return WindowSet(
        x={m.name: np.zeros((0, m.channels, task.samples(m.name)), np.float32) for m in task.modalities},
        present_BM=np.zeros((0, count), np.bool_),
        quality_BM=np.ones((0, count), np.float32),
        y_B=np.zeros(0, np.int64),
        context=context.empty(task),
    )


def check(windows: WindowSet, task: Task, where: str = "windows") -> WindowSet:
    """Compare a set with the task it is meant for, and return it.

    Raises:
        Misconfigured: a modality is missing or foreign, a shape or a class index does not fit, a value is not
            finite, a context does not end with its window; the message names ``where`` and the array.
    """
    names, count = task.modality_names, len(windows)
    if set(windows.x) != set(names):
        raise Misconfigured(
            f"{where}: it has modalities {', '.join(sorted(windows.x)) or 'none'}, "
            f"task {task.name!r} has {', '.join(names)}"
        )
    shapes: dict[str, tuple[int, ...]] = {
        f"{_X}{m.name}": (count, m.channels, task.samples(m.name)) for m in task.modalities
    }
    shapes |= {"present": (count, len(names)), "quality": (count, len(names))}
    arrays: dict[str, NDArray[Any]] = {f"{_X}{name}": x for name, x in windows.x.items()}
    arrays |= {"present": windows.present_BM, "quality": windows.quality_BM}
    for key, array in arrays.items():
        if array.shape != shapes[key]:
            raise Misconfigured(
                f"{where}: {key} has shape {array.shape}, task {task.name!r} needs {shapes[key]}"
                f"{_pixels(task, key.removeprefix(_X))}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Misconfigured(
                f"{where}: {key} holds NaN or infinite values; missing data is zeros with present=0"
            )
    context.check(windows, task, where)
    for name, y_B in windows.targets.items():
        _check_target(windows, task, name, y_B, where)
    if count and not (windows.y_B.min() >= -1 and windows.y_B.max() < len(task.labels)):
        raise Misconfigured(
            f"{where}: y goes from {windows.y_B.min()} to {windows.y_B.max()}; task {task.name!r} has "
            f"classes 0 to {len(task.labels) - 1}, and -1 means unlabelled"
        )
    return windows


def _pixels(task: Task, name: str) -> str:
    """How an image becomes a window, as a hint; empty for what is no image."""
    modality = next((one for one in task.modalities if one.name == name and one.kind == "image"), None)
    return "" if modality is None else f": {size_of(modality)}, row by row (reshape(B, C, H * W))"


def _check_target(windows: WindowSet, task: Task, name: str, y_B: NDArray[Any], where: str) -> None:
    known = {t.name: t for t in task.targets if t.kind != "generation"}
    if name not in known:
        raise Misconfigured(
            f"{where}: {_TARGET}{name}: task {task.name!r} has no such target with labels "
            f"(it has {', '.join(known) or 'none'})"
        )
    if y_B.shape != windows.y_B.shape:
        raise Misconfigured(f"{where}: {_TARGET}{name} has shape {y_B.shape}, y {windows.y_B.shape}")
    labels, given_B = known[name].labels, y_B[~np.isnan(y_B)]
    wrong_B = ~np.isfinite(given_B)
    if labels:
        wrong_B |= (given_B != np.rint(given_B)) | (given_B < 0) | (given_B >= len(labels))
    if wrong_B.any():
        wanted = f"0 to {len(labels) - 1}" if labels else "finite"
        raise Misconfigured(
            f"{where}: {_TARGET}{name} holds {given_B[wrong_B][0]:g}; it must be {wanted}, or NaN: unlabelled"
        )


def _check_groups(windows: WindowSet, where: str) -> None:
    if windows.group_B is None:
        return
    if windows.group_B.ndim != 1 or windows.group_B.dtype.itemsize > 4 * _MAX_GROUP:
        raise Misconfigured(
            f"{where}: key {_GROUP!r} must hold a name of at most {_MAX_GROUP} letters a window"
        )


def save(path: Path, windows: WindowSet) -> None:
    """Write a set as npz, atomically."""
    arrays: dict[str, NDArray[Any]] = {f"{_X}{name}": x for name, x in windows.x.items()}
    arrays |= {"present": windows.present_BM, "quality": windows.quality_BM, "y": windows.y_B}
    arrays |= {f"{_TARGET}{name}": y_B for name, y_B in windows.targets.items()}
    arrays |= context.arrays(windows.context)
    if windows.group_B is not None:
        arrays[_GROUP] = windows.group_B
    write_npz(Path(path), arrays)


def load(path: Path, task: Task | None = None) -> WindowSet:
    """Read a set; with a task, also compare it with the task.

    Raises:
        Misconfigured: no such file, not an npz, a key is missing, of the wrong type or (with a task) shape;
            the message names the file and the key.
    """
    data = read_arrays(Path(path), "a window set")
    for key in _KEYS:
        if key not in data:
            raise Misconfigured(
                f"{path}: key {key!r} is not in it; a window set has x/<modality>, present, quality, y"
            )
    for key, array in data.items():
        kinds, wanted = _KINDS.get(key, ("biuf", "numbers"))
        if array.dtype.kind not in kinds:
            raise Misconfigured(f"{path}: key {key!r} holds {array.dtype}, not {wanted}")
    with np.errstate(over="ignore"):
        x_BCT = {k.removeprefix(_X): np.asarray(x, np.float32) for k, x in data.items() if k.startswith(_X)}
        windows = WindowSet(
            x=x_BCT,
            present_BM=np.asarray(data["present"], np.bool_),
            quality_BM=np.asarray(data["quality"], np.float32),
            y_B=np.asarray(data["y"], np.int64),
            targets={
                k.removeprefix(_TARGET): np.asarray(y, np.float32)
                for k, y in data.items()
                if k.startswith(_TARGET)
            },
            context=context.read(data, str(path)),
            group_B=data.get(_GROUP),
        )
    stretches = context.arrays(windows.context).values()
    of_windows = (*windows.x.values(), *stretches, *(() if windows.group_B is None else (windows.group_B,)))
    if windows.y_B.ndim != 1 or any(x.shape[:1] != windows.y_B.shape for x in of_windows):
        raise Misconfigured(
            f"{path}: y, group, the x/<modality> arrays and those of a context must hold the same number of "
            "windows"
        )
    _check_groups(windows, str(path))
    return windows if task is None else check(windows, task, str(path))


def is_one(path: Path) -> bool:
    """Whether an npz is a window set and not a recording, by one of its own keys.

    Raises:
        Misconfigured: it is no npz; the message names it.
    """
    try:
        return any(name in _KEYS for name in npz.names(path))
    except (OSError, npz.BadNpz) as error:
        raise Misconfigured(f"{path}: not a plain npz file: {error}") from None


def select(windows: WindowSet, index: ArrayLike) -> WindowSet:
    """The windows at these places (indices or a boolean mask), copied."""
    at = np.asarray(index)
    return WindowSet(
        x={name: x[at] for name, x in windows.x.items()},
        present_BM=windows.present_BM[at],
        quality_BM=windows.quality_BM[at],
        y_B=windows.y_B[at],
        targets={name: y_B[at] for name, y_B in windows.targets.items()},
        context=context.select(windows.context, at),
        group_B=None if windows.group_B is None else windows.group_B[at],
    )


def where(windows: WindowSet, keep_B: NDArray[np.bool_]) -> WindowSet:
    """The windows of a mask: a copy, or the same set if that is all of them."""
    return windows if keep_B.all() else select(windows, keep_B)


def concat(sets: Sequence[WindowSet]) -> WindowSet:
    """Several sets of one task, one after the other.

    Raises:
        ValueError: there are none, their modalities differ, or their contexts do.
    """
    if not sets:
        raise ValueError(
            "concat needs at least one window set; models.data.window_set.empty(task) makes an empty one"
        )
    if any(set(s.x) != set(sets[0].x) for s in sets):
        raise ValueError("the window sets have different modalities")
    return WindowSet(
        x={name: np.concatenate([s.x[name] for s in sets]) for name in sets[0].x},
        present_BM=np.concatenate([s.present_BM for s in sets]),
        quality_BM=np.concatenate([s.quality_BM for s in sets]),
        y_B=np.concatenate([s.y_B for s in sets]),
        targets={
            name: np.concatenate([target(s, name) for s in sets])
            for name in dict.fromkeys(name for s in sets for name in s.targets)
        },
        context=context.concat(sets),
        group_B=_groups(sets),
    )


def _groups(sets: Sequence[WindowSet]) -> NDArray[np.str_] | None:
    """The groups of all; windows without a group get the name ""."""
    if all(one.group_B is None for one in sets):
        return None
    return np.concatenate([np.full(len(s), "") if s.group_B is None else s.group_B for s in sets])


def described(windows: WindowSet, task: Task) -> dict[str, Any]:
    """A description of the windows of a score: number, classes, groups."""
    counts_K = np.bincount(windows.y_B[windows.y_B >= 0], minlength=len(task.labels))
    groups = 0 if windows.group_B is None else len(np.unique(windows.group_B))
    by_class = dict(zip(task.labels, counts_K.tolist(), strict=True))
    return {"windows": len(windows), "by_class": by_class, "groups": groups}


def target(windows: WindowSet, name: str) -> FloatArray:
    """``y_B`` float32 of a classification or regression, the one of ``label`` too; NaN where unlabelled."""
    if name == LABEL:
        return np.where(windows.y_B >= 0, windows.y_B, np.nan).astype(np.float32)
    found = windows.targets.get(name)
    return np.full(len(windows), np.nan, np.float32) if found is None else found


def counts(windows: WindowSet, task: Task) -> dict[str, tuple[int, ...]]:
    """Per modality, labelled windows in which it is present, by class: an update header's ``counts``."""
    classes = len(task.labels)
    labelled = windows.y_B >= 0
    return {
        name: tuple(np.bincount(windows.y_B[labelled & windows.present_BM[:, m]], minlength=classes).tolist())
        for m, name in enumerate(task.modality_names)
    }
