"""Windows of a device from NumPy arrays, checked against the task with words that name device and array.

Shapes: B windows, C channels, T grid points, H rows and W columns of an image.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.contract import WindowSet
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Modality, Target, Task

GROUP: Final = "group"


def windows_of_arrays(task: Task, arrays: Mapping[str, Any], where: str) -> WindowSet:
    """The window set of a device.

    Args:
        task: names modalities, shapes and classes.
        arrays: by modality ``x_BCT`` (of images also ``x_BCHW``, of one channel or one point also ``x_BT`` or
            ``x_BC``), or None: the device has no such sensor. A window whose values are all NaN lacks the
            modality. ``label``: B classes, by name or by index, -1 or None: unlabelled; the same by the name
            of each further target. ``group``: B names of persons, optional.
        where: what messages begin with.

    Raises:
        Misconfigured: an array is missing, unknown, or of a wrong shape or type; a label is unknown.
    """
    given = dict(arrays)
    targets = [one for one in task.objectives if one.kind != "generation"]
    _require_names(task, given, targets, where)
    x = {one.name: given.pop(one.name) for one in task.modalities}
    count = _count(x, given, where)
    made: dict[str, NDArray[np.float32]] = {}
    present_BM = np.ones((count, len(task.modalities)), np.bool_)
    for column, modality in enumerate(task.modalities):
        values, there_B = _values(task, modality, x[modality.name], count, where)
        made[modality.name], present_BM[:, column] = values, there_B
    if count and not present_BM.any(axis=1).all():
        at = int(np.flatnonzero(~present_BM.any(axis=1))[0])
        raise Misconfigured(f"{where}: window {at} has no modality at all: every value of it is NaN or None")
    labels = {one.name: _labels(one, given[one.name], count, where) for one in targets if one.name in given}
    y_B = labels.pop(LABEL, np.full(count, np.nan, np.float32))
    made_of = WindowSet(
        x=made,
        present_BM=present_BM,
        quality_BM=np.ones(present_BM.shape, np.float32),
        y_B=np.where(np.isnan(y_B), -1, y_B).astype(np.int64),
        targets=labels,
    )
    if GROUP in given:
        made_of = replace(made_of, group_B=_column(given[GROUP], count, GROUP, where).astype(np.str_))
    return window_set.check(made_of, task, where)


def _require_names(task: Task, given: Mapping[str, Any], targets: list[Target], where: str) -> None:
    known = (*task.modality_names, *(one.name for one in targets), GROUP)
    if stray := [str(name) for name in given if name not in known]:
        raise Misconfigured(f"{where}: task {task.name!r} has no {stray[0]!r}; arrays are {', '.join(known)}")
    if missing := [name for name in task.modality_names if name not in given]:
        raise Misconfigured(
            f"{where}: modality {missing[0]!r} is missing; give its array, or None if the device has no such "
            "sensor"
        )


def _count(x: Mapping[str, Any], given: Mapping[str, Any], where: str) -> int:
    """The number of windows, which all arrays share."""
    lengths = {
        name: _length(value, name, where) for name, value in {**x, **given}.items() if value is not None
    }
    if not any(value is not None for value in x.values()):
        raise Misconfigured(f"{where}: it has no modality at all: every array is None")
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise Misconfigured(f"{where}: the arrays have different numbers of windows: {words}")
    return next(iter(lengths.values()))


def _length(value: Any, name: str, where: str) -> int:
    try:
        return len(value)
    except TypeError:
        raise Misconfigured(f"{where}: {name}: give an array, not {type(value).__name__}") from None


def _values(
    task: Task, modality: Modality, given: Any, count: int, where: str
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """``x_BCT``, zeros where a window lacks the modality, and ``there_B``."""
    shape = (count, modality.channels, task.samples(modality.name))
    if given is None:
        return np.zeros(shape, np.float32), np.zeros(count, np.bool_)
    try:
        whole = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise Misconfigured(f"{where}: {modality.name}: it holds other things than numbers") from None
    if whole.shape not in _fitting(modality, shape):
        raise Misconfigured(f"{where}: {modality.name}: {_misfit(task, modality, whole.shape, shape)}")
    x_BCT = whole.reshape(shape).copy()
    nan_BN = np.isnan(x_BCT).reshape(count, -1)
    missing_B: NDArray[np.bool_] = np.all(nan_BN, axis=1)
    if (nan_BN.any(axis=1) & ~missing_B).any():
        at = int(np.flatnonzero(nan_BN.any(axis=1) & ~missing_B)[0])
        raise Misconfigured(
            f"{where}: {modality.name}: window {at} has some NaN; fill the gap, or make all of the window's "
            "values NaN: it then lacks the modality"
        )
    x_BCT[missing_B] = 0.0
    return x_BCT, np.logical_not(missing_B)


def _fitting(modality: Modality, shape: tuple[int, int, int]) -> set[tuple[int, ...]]:
    count, channels, points = shape
    fitting: set[tuple[int, ...]] = {shape}
    if channels == 1:
        fitting.add((count, points))
    if points == 1:
        fitting.add((count, channels))
    if modality.height and modality.width:
        fitting.add((count, channels, modality.height, modality.width))
        if channels == 1:
            fitting.add((count, modality.height, modality.width))
    return fitting


def _misfit(task: Task, modality: Modality, found: tuple[int, ...], wanted: tuple[int, int, int]) -> str:
    what = "(windows, channels, samples)"
    if modality.height and modality.width:
        what = f"(windows, channels, pixels), or (windows, channels, {modality.height}, {modality.width})"
    words = f"shape {found}; task {task.name!r} needs {wanted}: {what}"
    if len(found) == len(wanted) and (found[0], found[2], found[1]) == wanted:
        return f"{words}; it seems transposed: use x.transpose(0, 2, 1)"
    return words


def _labels(target: Target, given: Any, count: int, where: str) -> NDArray[np.float32]:
    """Class index or value of each window, NaN: unlabelled."""
    given_B = _column(given, count, target.name, where)
    if not target.labels:
        return _numbers(given_B, target.name, where)
    index = {name: float(number) for number, name in enumerate(target.labels)}
    if given_B.dtype.kind in "iufb":
        values_B = given_B.astype(np.float32)
        values_B[values_B == -1] = np.nan
        wrong_B = ~np.isnan(values_B) & ~np.isin(values_B, np.arange(len(index)))
        if wrong_B.any():
            raise Misconfigured(
                f"{where}: {target.name}: {given_B[wrong_B][0]} is no class; there are "
                f"{len(index)}, from 0 to {len(index) - 1} ({', '.join(index)}), and -1 means unlabelled"
            )
        return values_B
    words_B = [None if _is_unlabelled(one) else str(one) for one in given_B.tolist()]
    if stray := sorted({one for one in words_B if one is not None} - set(index)):
        raise Misconfigured(
            f"{where}: {target.name}: {stray[0]!r} is no class of task key 'labels' ({', '.join(index)}); "
            "None means unlabelled"
        )
    return np.array([np.nan if one is None else index[one] for one in words_B], np.float32)


def _is_unlabelled(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and value != value)  # noqa: PLR0124 - NaN


def _numbers(given_B: NDArray[Any], name: str, where: str) -> NDArray[np.float32]:
    try:
        return np.array([np.nan if one is None else one for one in given_B.tolist()], np.float32)
    except (TypeError, ValueError):
        raise Misconfigured(f"{where}: {name}: it holds other things than numbers") from None


def _column(given: Any, count: int, name: str, where: str) -> NDArray[Any]:
    column_B = np.asarray(given)
    if column_B.dtype.kind not in "iufbUO" or column_B.shape != (count,):
        raise Misconfigured(
            f"{where}: {name}: shape {column_B.shape} of {column_B.dtype}; needed is one value a window: "
            f"({count},)"
        )
    return column_B
