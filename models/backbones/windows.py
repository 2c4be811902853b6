"""Window sets of what sensors deliver -> window sets of what backbones make of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.backbones import files
from models.backbones.model import Run
from models.backbones.views import backbones, sensed
from models.contract import FloatArray, WindowSet
from models.data import window_set
from protocol.errors import Misconfigured, Refused
from protocol.tasks.task import Task

_AT_ONCE: Final = 32
"""Windows that are copied at once."""


def with_features(
    task: Task, windows: WindowSet, run: Mapping[str, Run], done: Callable[[int], None] | None = None
) -> WindowSet:
    """Windows as the task is learned, of windows as they are cut.

    Args:
        task: prepared.
        windows: of ``sensed(task)``.
        run: the backbone of each modality that has one.
        done: called with the number of windows whenever features of some were computed.

    Raises:
        Refused: a backbone does not run; the detail names the modality.
    """
    made = dict(windows.x)
    for m, name in enumerate(task.modality_names):
        if name in run:
            z_BD1 = made[name] = np.zeros((len(windows), task.modality(name).channels, 1), np.float32)
            for some_N in _parts(windows.present_BM[:, m]):
                z_BD1[some_N, :, 0] = _run(run[name], name, windows.x[name][some_N])
                if done is not None:
                    done(len(some_N))
    return replace(windows, x=made)


def _parts(present_B: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    rows_N = np.flatnonzero(present_B)
    for at in range(0, len(rows_N), _AT_ONCE):
        yield rows_N[at : at + _AT_ONCE]


def _run(run: Run, name: str, x_BCT: FloatArray) -> FloatArray:
    try:
        return run(x_BCT)
    except Refused as error:
        raise Refused(error.reason, f"backbone of {name}: {error.detail}"[:500]) from None


def runs_of(task: Task, paths: Mapping[str, Path], threads: int = 1) -> dict[str, Run]:
    """The backbones of a prepared task, in this process.

    Args:
        task: prepared.
        paths: of the file of each.
        threads: of ONNX Runtime.

    Raises:
        Misconfigured: a file cannot be read, or is not the one that the task names.
        Refused: it cannot be used.
    """
    found: dict[str, Run] = {}
    for name, backbone in backbones(task).items():
        raw = sensed(task)
        try:
            data = files.read(paths[name], backbone.sha256)
            found[name] = files.open_model(data, raw.modality(name), raw.samples(name), threads).run
        except Refused as error:
            raise Refused(error.reason, f"backbone of {name}: {paths[name]}: {error.detail}"[:500]) from None
    return found


def paths_in(task: Task, folder: Path) -> dict[str, Path]:
    """The files of a task's backbones, by the names in the task file."""
    return {name: folder / (one.file or f"{one.sha256}.onnx") for name, one in backbones(task).items()}


def learned(task: Task, windows: WindowSet, folder: Path, threads: int = 1) -> WindowSet:
    """Windows as the task is learned, by the backbones in the task's folder.

    Raises:
        Misconfigured: a backbone cannot be used; the message names it.
    """
    if not backbones(task):
        return windows
    try:
        made = with_features(task, windows, runs_of(task, paths_in(task, folder), threads))
    except Refused as error:
        raise Misconfigured(error.detail) from None
    return window_set.check(made, task)
