"""Classes by name in recordings: numbered as a file is read, mapped to indices once the task is known.

Shapes: n values.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.data.labels.labels import TargetTrack
from models.data.streams.recording import Recording
from protocol.tasks.task import LABEL, Task


def of_task(task: Task, recording: Recording) -> Recording:
    """The same recording with the task's class indices; a name that the task lacks counts as unlabelled."""
    if not recording.names:
        return recording
    label, targets = recording.label, dict(recording.targets)
    for name, named in recording.names.items():
        index = _index(task, name, named)
        if name == LABEL:
            label = _taken(index, label.astype(np.float64), -1.0).astype(np.int64)
        elif name in targets:
            track = targets[name]
            targets[name] = TargetTrack(track.t, _taken(index, track.values, np.nan))
    return replace(recording, label=label, targets=targets, names={})


def unknown(task: Task, recording: Recording) -> dict[str, tuple[str, ...]]:
    """Class names that the task does not have, by target; targets that it lacks are left out."""
    found = {}
    for name, named in recording.names.items():
        if name in task.target_names:
            labels = task.target(name).labels
            if strange := tuple(word for word in named if word not in labels):
                found[name] = strange
    return found


def _index(task: Task, target: str, named: Sequence[str]) -> NDArray[np.float64]:
    """By class of the file, the index in the task; NaN if there is none."""
    labels = task.target(target).labels if target in task.target_names else ()
    return np.array([labels.index(word) if word in labels else np.nan for word in named], np.float64)


def _taken(index: NDArray[np.float64], values_n: NDArray[np.float64], none: float) -> NDArray[np.float64]:
    there_n = values_n >= 0  # neither NaN nor -1
    found_n = np.full(len(values_n), np.nan)
    found_n[there_n] = index[values_n[there_n].astype(np.int64)]
    return np.where(np.isnan(found_n), none, found_n)
