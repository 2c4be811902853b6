"""What a simulated device reads and predicts, and the windows that teach it that: an agent's own rules."""

import numpy as np
from numpy.typing import NDArray

from edge_agent.tasks.profile import restrict_to_profile, shown_in
from models.contract import Profile, WindowSet
from models.data import window_set
from protocol.errors import Transient
from protocol.tasks.task import Task


def material_of(task: Task, may: Profile | None, windows: WindowSet) -> tuple[Profile, WindowSet]:
    """A device's profile as its windows show it, and those of them that it can learn from.

    Args:
        task: what there is.
        may: what the device may read and predict at all; None: everything.
        windows: that it holds.

    Raises:
        Transient: none of them has something to read and a label of a target.
    """
    may = may or Profile(task.input_names, task.target_names)
    useful_B = _useful(task, may, windows)
    if not useful_B.any():
        raise Transient("no window has something to read and a label of a target")
    windows = window_set.select(windows, useful_B)
    profile = shown_in(task, may, windows)
    return profile, restrict_to_profile(task, profile, windows)


def _useful(task: Task, may: Profile, windows: WindowSet) -> NDArray[np.bool_]:
    """Which windows teach anything of a profile: something to read, something to say."""
    here = dict(zip(task.modality_names, windows.present_BM.T, strict=True))
    reads_B, says_B = np.zeros((2, len(windows)), np.bool_)
    for name in may.modalities:
        reads_B |= here[name]
    for name in may.targets:
        made = task.target(name).modality
        says_B |= np.isfinite(window_set.target(windows, name)) if made is None else here[made]
    return reads_B & says_B
