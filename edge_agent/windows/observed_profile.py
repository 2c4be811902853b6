"""The profile that the windows show: what this device reads and predicts, within its permitted profile. Pure.

A modality counts as soon as it is present in one window, a target as soon as one window has its label (a
generated target: its modality). So if a sensor or the labels of a target begin to arrive, the profile of the
next round changes without a restart. A device that only observes, or has no label yet, is still served a
model.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.rows import RowKind
from models import registry
from models.contract import Profile, WindowSet
from models.data import window_set
from models.data.streams import context as contexts
from protocol.errors import Transient
from protocol.tasks.task import LABEL, Task


def collected_modalities(task: Task, delivered: Iterable[str], profile: Profile) -> tuple[str, ...]:
    """The modalities that windows contain: those to read, and those to generate."""
    used = {*profile.modalities, *_generated(task, profile)}
    have = set(delivered)
    return tuple(m for m in task.modality_names if m in have and m in used)


def follows_windows(task: Task) -> bool:
    """Whether the profile follows the windows; else it is what the device may read, and ``label``."""
    return bool(task.targets) or registry.method(task.method).routed


def is_useful(task: Task, profile: Profile) -> Callable[[RowKind], bool]:
    """Whether a window of that kind helps to learn the profile: it has an input and a target."""

    def useful(kind: RowKind) -> bool:
        return all(_profile_part(task, profile, kind))

    return useful


def is_readable(task: Task, profile: Profile) -> Callable[[RowKind], bool]:
    """Whether a window of that kind has an input of the profile, labelled or not."""

    def has_input(kind: RowKind) -> bool:
        return bool(_profile_part(task, profile, kind)[0])

    return has_input


def count_readable(task: Task, profile: Profile, kinds: Mapping[RowKind, int]) -> int:
    """Number of windows with an input of the profile, labelled or not."""
    return sum(count for kind, count in kinds.items() if _profile_part(task, profile, kind)[0])


def observed_profile(task: Task, profile: Profile, kinds: Mapping[RowKind, int]) -> tuple[Profile, int]:
    """The part of a profile that windows show, and the number of useful windows."""
    useful = {kind: found for kind in kinds if all(found := _profile_part(task, profile, kind))}
    inputs = {m for found, _ in useful.values() for m in found}
    targets = {t for _, found in useful.values() for t in found}
    return _ordered(profile, inputs, targets), sum(kinds[kind] for kind in useful)


def served_profile(task: Task, profile: Profile, kinds: Mapping[RowKind, int]) -> Profile:
    """The profile of a device that does not learn: every permitted target, from all delivered modalities."""
    inputs = {m for kind in kinds for m in _profile_part(task, profile, kind)[0]}
    return _ordered(profile, inputs, set(profile.targets) if inputs else set())


def profile_of_windows(task: Task, profile: Profile, windows: WindowSet) -> Profile:
    """The part of a profile that these windows show; all of them are useful."""
    columns = dict(zip(task.modality_names, np.atleast_1d(windows.present_BM.any(axis=0)), strict=True))
    generated = {target.name: target.modality for target in task.targets}

    def is_labelled(name: str) -> bool:
        modality = generated.get(name)
        if modality is not None:
            return bool(columns[modality])
        return bool(np.isfinite(window_set.target(windows, name)).any())

    inputs = {m for m in profile.modalities if columns[m]}
    return _ordered(profile, inputs, {t for t in profile.targets if is_labelled(t)})


def restrict_to_profile(task: Task, profile: Profile, windows: WindowSet) -> WindowSet:
    """The windows, with modalities and labels outside the profile masked."""
    used = {*profile.modalities, *_generated(task, profile)}
    keep_M = np.array([name in used for name in task.modality_names])
    if not (windows.present_BM & ~keep_M).any():
        x, present_BM, quality_BM, context = (
            windows.x,
            windows.present_BM,
            windows.quality_BM,
            windows.context,
        )
    else:
        x = {name: x_BCT if name in used else np.zeros_like(x_BCT) for name, x_BCT in windows.x.items()}
        present_BM = windows.present_BM & keep_M
        quality_BM = np.where(present_BM, windows.quality_BM, np.float32(1))
        context = contexts.masked(windows.context, keep_M[None], task.modality_names)
    y_B = windows.y_B if LABEL in profile.targets else np.full_like(windows.y_B, -1)
    targets = {name: value_B for name, value_B in windows.targets.items() if name in profile.targets}
    restricted = replace(windows, x=x, present_BM=present_BM, quality_BM=quality_BM, context=context)
    return replace(restricted, y_B=y_B, targets=targets)


def training_windows(task: Task, may: Profile | None, windows: WindowSet) -> tuple[Profile, WindowSet]:
    """The profile that the windows show, and the useful windows, restricted to it.

    Args:
        task: defines modalities and targets.
        may: what the device may read and predict; None: everything.
        windows: of the device.

    Raises:
        Transient: none of them has both an input and a label of a target.
    """
    may = may or Profile(task.input_names, task.target_names)
    useful_B = _useful(task, may, windows)
    if not useful_B.any():
        raise Transient("no window has both an input and a label of a target")
    windows = window_set.where(windows, useful_B)
    profile = profile_of_windows(task, may, windows)
    return profile, restrict_to_profile(task, profile, windows)


def _generated(task: Task, profile: Profile) -> set[str]:
    return {t.modality for t in task.targets if t.modality is not None and t.name in profile.targets}


def _profile_part(task: Task, profile: Profile, kind: RowKind) -> tuple[set[str], set[str]]:
    present = {name for name, byte in zip(task.modality_names, kind.present, strict=True) if byte}
    targets = {*kind.labelled, *(t.name for t in task.targets if t.modality in present)}
    return present.intersection(profile.modalities), targets.intersection(profile.targets)


def _ordered(profile: Profile, inputs: set[str], targets: set[str]) -> Profile:
    return Profile(
        tuple(m for m in profile.modalities if m in inputs), tuple(t for t in profile.targets if t in targets)
    )


def _useful(task: Task, may: Profile, windows: WindowSet) -> NDArray[np.bool_]:
    """Which windows help to learn a profile: they have an input and a target."""
    present = dict(zip(task.modality_names, windows.present_BM.T, strict=True))
    has_input_B, has_target_B = np.zeros((2, len(windows)), np.bool_)
    for name in may.modalities:
        has_input_B |= present[name]
    for name in may.targets:
        modality = task.target(name).modality
        has_target_B |= (
            np.isfinite(window_set.target(windows, name)) if modality is None else present[modality]
        )
    return has_input_B & has_target_B
