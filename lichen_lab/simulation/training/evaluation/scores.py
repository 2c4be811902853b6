"""Scores of a device's own model by target, for the module of any method. Imports torch.

Shapes: B windows, M modalities, C channels, T samples, K classes.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from export.signature import surface_of
from models.contract import Evaluation, FloatArray, WindowSet
from models.data.window_set import target as truth_of
from models.training.evaluation import judge
from protocol.errors import Misconfigured
from protocol.output_names import output_names
from protocol.tasks.task import Target, Task

_BATCH: Final = 256


def scored(task: Task, module: Any, windows: WindowSet) -> Evaluation:
    """Evaluate an inference module on labelled windows.

    Metrics are named as in ``Client.evaluate``: those of the first classification with a labelled window, and
    of every other target ``<target>/accuracy`` or ``<target>/r2``.

    Raises:
        Misconfigured: no window is labelled for any of its classifications.
    """
    surface = surface_of(module, task)
    columns = [task.modality_names.index(name) for name in surface.names]
    made = predicted(module, surface.names, surface.outputs, windows, columns)
    truths = {t.name: truth_of(windows, t.name) for t in surface.targets if t.labels}
    known = [t for t in surface.targets if t.labels and not np.isnan(truths[t.name]).all()]
    if not known:
        names = ", ".join(t.name for t in surface.targets)
        raise Misconfigured(f"no test window is labelled for a classification among {names}")
    main = known[0]
    true_B = np.nan_to_num(truths[main.name], nan=-1).astype(np.int64)
    evaluation = judge(true_B, made[output_names(main)[0]])
    for target in surface.targets:
        if target != main:
            evaluation.metrics.update(_metric(task, target, windows, made[output_names(target)[0]]))
    return evaluation


def predicted(
    module: Any, names: tuple[str, ...], outputs: tuple[str, ...], windows: WindowSet, columns: list[int]
) -> dict[str, FloatArray]:
    """All outputs of all windows, in batches.

    Args:
        module: an inference module.
        names: modalities that it reads.
        outputs: names of its outputs.
        windows: any number.
        columns: of these modalities in ``present_BM``.
    """
    present_BM = torch.from_numpy(windows.present_BM[:, columns].astype(np.float32))
    x = [torch.from_numpy(windows.x[name]) for name in names]
    with torch.inference_mode():
        parts = [
            module(present_BM[at : at + _BATCH], *(x_BCT[at : at + _BATCH] for x_BCT in x))
            for at in range(0, max(1, len(windows)), _BATCH)
        ]
    whole = (torch.cat(pieces).numpy() for pieces in zip(*parts, strict=True))
    return dict(zip(outputs, whole, strict=True))


def _metric(task: Task, target: Target, windows: WindowSet, guess: FloatArray) -> Mapping[str, float]:
    """One target's figure; none if no window has a true value."""
    if target.modality is not None:
        there_B = windows.present_BM[:, task.modality_names.index(target.modality)]
        true = windows.x[target.modality][there_B].astype(np.float64)
    else:
        truth_B = truth_of(windows, target.name)
        there_B = ~np.isnan(truth_B)
        true = truth_B[there_B].astype(np.float64)
    if not there_B.any():
        return {}
    if target.labels:
        return {f"{target.name}/accuracy": float((guess[there_B].argmax(axis=1) == true).mean())}
    error, spread = np.square(guess[there_B] - true).sum(), np.square(true - true.mean(axis=0)).sum()
    return {f"{target.name}/r2": float(1 - error / max(spread, 1e-12))}
