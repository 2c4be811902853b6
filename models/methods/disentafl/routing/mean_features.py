"""The fleet's mean features of DisentAFL-KD: names, rows, and the coordinator's equation. NumPy only.

``features/<m>.<o>/values`` (K, F) is what the fleet has for ``Z[m, o]``, a row a class of target o; a
regression or generation has one row. Where o is shared, the rows of all targets follow each other.
``features/<m>.<o>/rounds`` (K,) counts the rounds in which each row was seen; 0: there is none yet.

Shapes: K rows, F latent.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Blobs, FloatArray, Profile
from models.methods.disentafl import SHARED
from models.methods.disentafl.routing.blob_names import config_of, route
from protocol.tasks.task import Task

PART: Final = "features"
"""The first word of these blobs' names."""


def blob_name(modality: str, target: str) -> str:
    """The blob of one knowledge type's features."""
    return f"{PART}/{modality}.{target}"


def values_name(blob: str) -> str:
    """The tensor of features: (K, F) in the global state, (rows, F) in an update."""
    return f"{blob}/values"


def rounds_name(blob: str) -> str:
    """The tensor (K,) of rounds."""
    return f"{blob}/rounds"


def rows_of(task: Task, target: str, *, within: str | None = None) -> range:
    """The rows that a target has in the table of ``within``: the target itself (None), or :data:`SHARED`.

    All rows of the table of the shared target: ``rows_of(task, SHARED)``.

    Raises:
        KeyError: the task has no such target.
    """
    start = 0
    for objective in task.objectives if SHARED in {target, within} else (task.target(target),):
        stop = start + max(1, len(objective.labels))
        if objective.name == target:
            return range(start, stop)
        start = stop
    if target != SHARED:
        raise KeyError(f"task {task.name!r} has no target {target!r}")
    return range(start)


def fresh(task: Task) -> Blobs:
    """The blobs of a new state: nothing was seen. None, where devices share weights."""
    config = config_of(task)
    if config.aggregate != "kd":
        return {}
    blobs: Blobs = {}
    for blob in route(task, Profile(task.input_names, task.target_names), ()):
        if blob.split("/", 1)[0] != PART:
            continue
        count = len(rows_of(task, blob.rpartition(".")[2]))
        blobs[blob] = {
            rounds_name(blob): np.zeros(count, np.float32),
            values_name(blob): np.zeros((count, config.latent), np.float32),
        }
    return blobs


def cumulative(
    old_KF: FloatArray, rounds_K: FloatArray, mean_KF: FloatArray, seen_K: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """The mean over rounds, by row, after one more: ``((t - 1) old + mean) / t``.

    Returns:
        The new values and rounds; rows that were not seen in this round keep theirs.
    """
    t_K = rounds_K + 1
    share_K = np.where(seen_K, 1 / t_K, 0).astype(np.float32)
    new_KF = old_KF + share_K[:, None] * (mean_KF - old_KF)
    return new_KF.astype(np.float32), np.where(seen_K, t_K, rounds_K).astype(np.float32)
