"""Window sets of what sensors deliver -> window sets of what backbones make of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.backbones import files
from models.backbones.model import Run
from models.backbones.views import backbones, sensed
from models.contract import FloatArray, WindowSet
from models.data import window_set
from protocol.errors import Misconfigured, Refused
from protocol.tasks.task import Task


def with_features(task: Task, windows: WindowSet, run: Mapping[str, Run]) -> WindowSet:
    """Windows as the task is learned, of windows as they are cut.

    Args:
        task: prepared.
        windows: of ``sensed(task)``.
        run: the backbone of each modality that has one.

    Raises:
        Refused: a backbone does not run; the detail names the modality.
    """
    made = dict(windows.x)
    for m, name in enumerate(task.modality_names):
        if name in run:
            made[name] = _features(
                name, windows.x[name], windows.present_BM[:, m], run[name], task.modality(name).channels
            )
    return replace(windows, x=made)


def _features(name: str, x_BCT: FloatArray, present_B: NDArray[np.bool_], run: Run, dim: int) -> FloatArray:
    z_BD1 = np.zeros((len(x_BCT), dim, 1), np.float32)
    rows_N = np.flatnonzero(present_B)
    if len(rows_N):
        try:
            z_BD1[rows_N, :, 0] = run(x_BCT[rows_N])
        except Refused as error:
            raise Refused(error.reason, f"backbone of {name}: {error.detail}"[:500]) from None
    return z_BD1


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
        data = files.read(paths[name], backbone.sha256)
        found[name] = files.open_model(data, raw.modality(name), raw.samples(name), threads).run
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
