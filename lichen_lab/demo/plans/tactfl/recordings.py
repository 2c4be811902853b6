"""Recordings without labels for the devices, and labelled windows for the coordinator, made from SPAR."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.demo.plans.tactfl import devices
from lichen_lab.demo.plans.tactfl.devices import UnlabelledWatch
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sensor_faults import SensorFault, inject, plan_faults
from lichen_lab.simulation.data.sets import spar
from models.contract import WindowSet
from models.data import window_set
from protocol.tasks.task import Task

_PAIR: Final = 100
"""Seeds are ``seed * 100 + person``, as in the other demos."""


def whole_recording(series: Sequence[spar.Series], person: int, seed: int) -> spar.Recording:
    """A person's whole recording with labels; the seed decides the order of series."""
    own = spar.on_one_wrist(spar.of_person(series, person))
    return spar.recording(own, seed=seed * _PAIR + person)


def faults(recorded: spar.Recording, watch: UnlabelledWatch, seed: int) -> list[SensorFault]:
    """Sensor faults of a device, with their times."""
    if watch.broken:
        end = spar.seconds(recorded)
        return [SensorFault("noise", name, 0.0, end, "broken", devices.BROKEN_DB) for name in watch.sensors]
    return [] if watch.faults is None else plan_faults(recorded, watch.faults, seed * _PAIR + watch.person)


def device_recording(
    series: Sequence[spar.Series], watch: UnlabelledWatch, seed: int
) -> spar_fleet.FaultyRecording:
    """A training device's recording, without labels."""
    recorded = whole_recording(series, watch.person, seed)
    wrong = faults(recorded, watch, seed)
    hurt = inject(recorded, wrong, seed * _PAIR + watch.person)
    kept = {key: values for key, values in hurt.items() if key.rpartition("/")[0] in watch.sensors}
    return spar_fleet.FaultyRecording(kept, tuple(wrong))


def labelled_windows(task: Task, series: Sequence[spar.Series], seed: int) -> WindowSet:
    """The coordinator's windows: a random share of each training person and exercise.

    They come from sensors without faults.
    """
    parts = []
    for watch in devices.DEVICES:
        windows = spar_fleet.windows(task, whole_recording(series, watch.person, seed))
        rng = np.random.default_rng(seed * _PAIR + watch.person)
        parts.append(window_set.select(windows, draw_share(windows.y_B, devices.LABELLED_SHARE, rng)))
    return window_set.concat(parts)


def draw_share(y_B: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Indices of that share of each class's windows (at least one), in order."""
    picked = [
        rng.permutation(own)[: max(1, round(share * len(own)))]
        for label in np.unique(y_B[y_B >= 0])
        if len(own := np.flatnonzero(y_B == label))
    ]
    return np.sort(np.concatenate(picked)) if picked else np.empty(0, np.int64)
