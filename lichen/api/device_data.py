"""The data of a simulation: a folder, or windows by device; and the windows that are held back for scores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lichen.api.device_arrays import windows_of_arrays
from lichen.backbones.features import WindowFeatures
from models.contract import WindowSet
from models.data import window_set
from protocol.base import name_trouble
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Task

DeviceInput = WindowSet | Mapping[str, Any] | str | Path
"""Windows of one device: a window set, arrays by name, or a file (a recording or a window set)."""
FleetInput = Mapping[str, DeviceInput] | Sequence[DeviceInput] | str | Path
"""A folder with a file for each device, or devices by name, or a list of devices."""


def fleet_of(
    task: Task, given: FleetInput, features: WindowFeatures | None = None
) -> Path | dict[str, WindowSet | Path]:
    """The folder, or what each device has; files are read later.

    Args:
        task: as windows are cut of it.
        given: the data.
        features: of the task's backbones; None: it has none.

    Raises:
        Misconfigured: there is no such folder, there is no device, or windows do not fit the task.
    """
    if isinstance(given, str | Path):
        folder = Path(given)
        if not folder.is_dir():
            raise Misconfigured(
                f"data: {folder}: there is no such folder; give one with a file for each device"
            )
        return folder
    if isinstance(given, WindowSet) or not isinstance(given, Mapping | Sequence):
        raise Misconfigured(
            "data: give a folder, a dict of devices by name, or a list of window sets, not "
            f"{type(given).__name__}"
        )
    if not given:
        raise Misconfigured("data: it is empty; a simulation needs at least one device")
    named = given if isinstance(given, Mapping) else {f"device-{n}": one for n, one in enumerate(given, 1)}
    if isinstance(given, Mapping) and set(given) & {*task.modality_names, LABEL}:
        raise Misconfigured(
            f"data: {next(iter(given))!r} is an array of one device; give devices by name: "
            '{"device-1": {...}, "device-2": {...}}'
        )
    for name in named:
        if not isinstance(name, str) or name_trouble(name):
            words = name_trouble(name) if isinstance(name, str) else f"{name!r} is no text"
            raise Misconfigured(f"data: a device's name: {words}")
    return {name: device_of(task, one, f"device {name!r}", features) for name, one in named.items()}


def device_of(
    task: Task, given: DeviceInput, where: str, features: WindowFeatures | None = None
) -> WindowSet | Path:
    """One device's windows as the task is learned, or its file.

    Args:
        task: as windows are cut of it.
        given: the data.
        where: whose it is.
        features: of the task's backbones; None: it has none.

    Raises:
        Misconfigured: the file is missing, windows do not fit the task, or a backbone fails on them; the
            message begins with ``where``.
    """
    if isinstance(given, WindowSet | Mapping):
        found = (
            window_set.check(given, task, where)
            if isinstance(given, WindowSet)
            else windows_of_arrays(task, given, where)
        )
        return found if features is None else features.of(found, where)
    if isinstance(given, str | Path):
        file = Path(given)
        if not file.is_file():
            raise Misconfigured(f"{where}: {file}: there is no such file")
        return file
    raise Misconfigured(
        f"{where}: give a window set, a dict of arrays, or a file, not {type(given).__name__}"
    )


def held_back(devices: Mapping[str, WindowSet], share: float) -> tuple[dict[str, WindowSet], WindowSet]:
    """Devices without the last ``share`` of their windows of each class; and those, joined.

    Each held-back window has its device as its group, unless the windows name groups themselves.

    Raises:
        Misconfigured: the share is not between 0 and 1, or no device has two labelled windows of a class.
    """
    if not 0 < share < 1:
        raise Misconfigured(f"test: {share:g}: a share of each device's windows is between 0 and 1")
    left, judges = {}, []
    for name, windows in devices.items():
        judged_B = np.zeros(len(windows), np.bool_)
        for label in np.unique(windows.y_B[windows.y_B >= 0]):
            of_class = np.flatnonzero(windows.y_B == label)
            count = min(len(of_class) - 1, round(share * len(of_class)))
            judged_B[of_class[len(of_class) - count :]] = count > 0
        left[name] = window_set.select(windows, ~judged_B)
        judge = window_set.select(windows, judged_B)
        if judge.group_B is None:
            judge = replace(judge, group_B=np.full(len(judge), name))
        judges.append(judge)
    if not sum(map(len, judges)):
        raise Misconfigured(
            f"test: {share:g} of each device's labelled windows is none: there are too few of them"
        )
    return left, window_set.concat(judges)
