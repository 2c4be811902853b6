"""The longer stretches of stream that end with the windows: create, check, select, join. Torch-free.

``models.data.window_set`` calls these for sets with a :class:`~models.contract.Context`; on disk it is
``context/x/<modality>`` (``x_BCL`` float32) and ``context/points`` (B, M) beside the window's arrays.

Shapes: B windows, M modalities, C channels, T grid points of a window, L of its context.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Context, WindowSet
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

X: Final = "context/x/"
POINTS: Final = "context/points"


def empty(task: Task) -> Context | None:
    """The context of no window; None if the task stores windows only."""
    if task.window.context_s is None:
        return None
    shapes = {m.name: (0, m.channels, task.context_samples(m.name)) for m in task.modalities}
    points_BM = np.zeros((0, len(task.modalities)), np.int64)
    return Context({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, points_BM)


def arrays(context: Context | None) -> dict[str, NDArray[Any]]:
    """Its arrays in a file, by key."""
    if context is None:
        return {}
    return {f"{X}{name}": x for name, x in context.x.items()} | {POINTS: context.points_BM}


def read(data: Mapping[str, NDArray[Any]], where: str) -> Context | None:
    """Read the arrays of :func:`arrays`; None if the file has none.

    Raises:
        Misconfigured: one of its keys is there without the others, or its counts are no integers.
    """
    x = {key.removeprefix(X): np.asarray(x, np.float32) for key, x in data.items() if key.startswith(X)}
    if not x and POINTS not in data:
        return None
    if not x or POINTS not in data:
        missing = POINTS if x else f"{X}<modality>"
        raise Misconfigured(
            f"{where}: key {missing!r} is not in it; a context has {X}<modality> and {POINTS}"
        )
    if data[POINTS].dtype.kind not in "iu":
        raise Misconfigured(f"{where}: key {POINTS!r} holds {data[POINTS].dtype}, not integers")
    return Context(x, np.asarray(data[POINTS], np.int64))


def check(windows: WindowSet, task: Task, where: str) -> None:
    """Compare the context of windows, if they have one, with the windows and the task.

    Raises:
        Misconfigured: a modality is missing or foreign, a shape or a count does not fit, a value is not
            finite, or a context does not end with its window; the message names ``where`` and the array.
    """
    context = windows.context
    if context is None:
        return
    if set(context.x) != set(task.modality_names):
        raise Misconfigured(
            f"{where}: {X}: it has modalities {', '.join(sorted(context.x)) or 'none'}, "
            f"task {task.name!r} has {', '.join(task.modality_names)}"
        )
    if context.points_BM.shape != windows.present_BM.shape:
        raise Misconfigured(
            f"{where}: {POINTS} has shape {context.points_BM.shape}, present {windows.present_BM.shape}"
        )
    for m, modality in enumerate(task.modalities):
        name, x_BCL = modality.name, context.x[modality.name]
        needed = (len(windows), modality.channels, task.context_samples(name))
        if x_BCL.shape != needed:
            raise Misconfigured(
                f"{where}: {X}{name} has shape {x_BCL.shape}, task {task.name!r} needs {needed} "
                f"(window.context_s is {task.window.context_s})"
            )
        _check_values(windows, m, name, x_BCL, where)


def _check_values(windows: WindowSet, m: int, name: str, x_BCL: NDArray[np.float32], where: str) -> None:
    """Check one modality: finite, ends with the window, and consistent counts."""
    assert windows.context is not None  # noqa: S101 - for the type checker
    points_B, present_B = windows.context.points_BM[:, m], windows.present_BM[:, m]
    length, window = x_BCL.shape[-1], windows.x[name].shape[-1]
    if not np.isfinite(x_BCL).all():
        raise Misconfigured(f"{where}: {X}{name} holds NaN or infinite values; what is not there is zeros")
    if not np.array_equal(x_BCL[..., length - window :], windows.x[name]):
        raise Misconfigured(f"{where}: {X}{name} does not end with the windows of x/{name}")
    right_B = np.where(present_B, (points_B >= window) & (points_B <= length), points_B == 0)
    if not right_B.all():
        raise Misconfigured(
            f"{where}: {POINTS} holds {points_B[~right_B][0]} for {name!r}; it must be {window} to {length} "
            "where the modality is present, and 0 where it is missing"
        )


def select(context: Context | None, at: NDArray[Any]) -> Context | None:
    """The contexts at these places (indices or a boolean mask), copied."""
    if context is None:
        return None
    return Context({name: x[at] for name, x in context.x.items()}, context.points_BM[at])


def concat(sets: Sequence[WindowSet]) -> Context | None:
    """The contexts of several sets, one after the other; None if none has one.

    Raises:
        ValueError: some have one and some do not, or they are not equally long.
    """
    found = [s.context for s in sets if s.context is not None]
    if not found:
        return None
    if len(found) < len(sets):
        raise ValueError(f"{len(found)} of {len(sets)} window sets have a context, the others have none")
    if any(x.shape[1:] != found[0].x[name].shape[1:] for one in found for name, x in one.x.items()):
        raise ValueError("the window sets have contexts of different lengths")
    return Context(
        {name: np.concatenate([one.x[name] for one in found]) for name in found[0].x},
        np.concatenate([one.points_BM for one in found]),
    )


def masked(context: Context | None, keep_BM: NDArray[np.bool_], names: Sequence[str]) -> Context | None:
    """The context with some modalities masked: zeros, and no points.

    Args:
        context: any.
        keep_BM: whether a modality is kept in a window; (1, M): in all.
        names: the modalities in the order of the columns.
    """
    if context is None:
        return None
    x = {
        name: np.where(keep_BM[:, m, None, None], context.x[name], np.float32(0))
        for m, name in enumerate(names)
    }
    return Context(x, np.where(keep_BM, context.points_BM, 0))
