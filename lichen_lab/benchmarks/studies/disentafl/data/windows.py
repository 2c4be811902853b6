"""Windows of a device: without modalities and targets that it lacks."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.streams import masked
from models.contract import Profile, WindowSet
from protocol.tasks.task import LABEL, Task


def seen_by(task: Task, profile: Profile, windows: WindowSet) -> WindowSet:
    """Remove modalities that a device neither reads nor generates, and targets that it does not have.

    Args:
        task: of the windows.
        profile: of the device.
        windows: with everything.

    Returns:
        Removed modalities are zeros and not present; removed targets are unlabelled.
    """
    made = {t.modality for t in task.objectives if t.name in profile.targets and t.modality is not None}
    has_M = np.array([name in profile.modalities or name in made for name in task.modality_names])
    return replace(
        masked(windows, has_M),
        y_B=windows.y_B if LABEL in profile.targets else np.full_like(windows.y_B, -1),
        targets={name: y_B for name, y_B in windows.targets.items() if name in profile.targets},
    )


def truths(
    task: Task, profile: Profile, classes: Mapping[str, NDArray[np.int64]]
) -> dict[str, NDArray[np.int64]]:
    """The class that each window should show, for each generated target of a device.

    Args:
        task: its objectives.
        profile: of the device.
        classes: modality that is generated -> (B,) class.
    """
    mine = (task.target(name) for name in profile.targets)
    return {t.name: classes[t.modality] for t in mine if t.modality is not None and t.modality in classes}


def stratified(y_B: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A mask with about ``share`` of every class, at least one window of each on both sides if possible."""
    chosen_B = np.zeros(len(y_B), np.bool_)
    for value in np.unique(y_B):
        members = rng.permutation(np.flatnonzero(y_B == value))
        count = round(share * len(members))
        if len(members) > 1:
            count = min(max(count, 1), len(members) - 1)
        chosen_B[members[:count]] = True
    return chosen_B


def words(profile: Profile) -> str:
    """A kind's name: ``inputs > targets``."""
    return f"{', '.join(profile.modalities)} > {', '.join(profile.targets)}"
