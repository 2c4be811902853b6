"""Whether further rounds gain anything: by the metric of versions, or by how far they still move. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from coordinator.versions.best_version import METRICS
from models.contract import Blobs
from models.registry import methods
from models.tensors import flatten
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task

CHANGE: Final = "change"
"""Metric of a version that is not evaluated: length of its step, relative to that of its values."""
_STILL: Final = 0.05
"""Share of the longest step of any version below which a step is none."""


def step(task: Task, before: Blobs, after: Blobs) -> dict[str, float]:
    """How far a version moved, as a metric: its step's length relative to that of the values before.

    Only parts that training moves are looked at (``MethodSpec.optimised``). Empty if nothing can be said.
    """
    spec = methods().get(task.method)
    parts = () if spec is None or not task.rounds.patience else spec.optimised
    old, new = flatten(before), flatten(after)
    moved = length = 0.0
    for name in [name for name in old if name.split("/", 1)[0] in parts and name in new]:
        moved += float(np.square(new[name].astype(np.float64) - old[name]).sum())
        length += float(np.square(old[name], dtype=np.float64).sum())
    return {CHANGE: math.sqrt(moved / length)} if length else {}


def reason(history: Sequence[Mapping[str, float]], rounds: Rounds) -> str:
    """Why the rounds end with the newest version; empty: they go on.

    Args:
        history: metrics of the versions that have any, the oldest first, the newest last.
        rounds: patience and gain.
    """
    if not rounds.patience or not history:
        return ""
    metric = next((name for name in (*METRICS, CHANGE) if name in history[-1]), None)
    if metric is None:
        return ""
    values = [metrics[metric] for metrics in history if metric in metrics]
    if len(values) <= rounds.patience:
        return ""
    recent, earlier = values[-rounds.patience :], values[: -rounds.patience]
    if metric == CHANGE:
        still = max(recent) < _STILL * max(earlier)
        words = f"no step of the last {rounds.patience} versions was {_STILL:.0%} of the longest"
    else:
        still = max(recent) < max(earlier) + rounds.gain
        words = f"{metric} gained less than {rounds.gain:g} in {rounds.patience} versions"
    return words if still else ""
