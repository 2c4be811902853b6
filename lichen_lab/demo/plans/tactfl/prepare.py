"""Files of the demo without labels: recordings, labelled windows, all configurations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.demo.core.prepare import begin, save_recordings, write_configurations
from lichen_lab.demo.core.prepare import labelled_windows as with_labels
from lichen_lab.demo.core.results import DeviceResults
from lichen_lab.demo.core.scenario import (
    Layout,
    Options,
    PreparedDemo,
    agent_config,
    coordinator_config,
    observer_config,
)
from lichen_lab.demo.plans.tactfl import devices
from lichen_lab.demo.plans.tactfl.devices import UnlabelledWatch
from lichen_lab.demo.plans.tactfl.results import TactflResults
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


def prepare(options: Options) -> PreparedDemo[TactflResults]:
    """Write all files that the processes read.

    Raises:
        Misconfigured: SPAR is not here, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    layout, series = begin(options, spar.load)
    task = devices.task(options.rounds, str(labelled_file(layout)), seed=options.seed)
    labelled = labelled_windows(task, series, options.seed)
    window_set.save(labelled_file(layout), labelled)
    window_set.save(layout.unseen, with_labels(spar_fleet.windows(task, spar_fleet.unseen(series))))
    results = initial_results(task, labelled)
    played = {watch.name: device_recording(series, watch, options.seed) for watch in devices.DEVICES}
    for watch, device in zip(devices.DEVICES, results.devices, strict=True):
        device.injected = played[watch.name].fault_shares(watch.sensors, ("outage", "noise"))
    watched = spar_fleet.observer_recording(series, options.seed)
    recorded = {name: one.recorded for name, one in {**played, spar_fleet.OBSERVER: watched}.items()}
    stage = PreparedDemo(
        layout=layout,
        task=task,
        results=results,
        people={watch.name: f"{watch.person}: {watch.trouble}" for watch in devices.DEVICES},
        agent=lambda name: agent_config(layout, name, options.speed),
        lengths_s=save_recordings(layout, recorded),
        fault=(watched.faults[0].start_s, watched.faults[0].end_s),
    )
    observing = observer_config(layout, spar_fleet.OBSERVER, spar_fleet.OBSERVER_SPEED)
    others = {spar_fleet.OBSERVER: observing, "coordinator": coordinator_config(layout)}
    return write_configurations(stage, others)


def labelled_file(layout: Layout) -> Path:
    """The coordinator's labelled windows."""
    return layout.root / "labelled.npz"


def initial_results(task: Task, labelled: WindowSet) -> TactflResults:
    """The results before the start."""
    return TactflResults(
        labels=task.labels,
        modalities=task.modality_names,
        unseen=spar_fleet.UNSEEN,
        devices=[DeviceResults(watch.name, (watch.person,), watch.trouble) for watch in devices.DEVICES],
        labelled=[int(n) for n in np.bincount(labelled.y_B, minlength=len(task.labels))],
        broken=next(watch.name for watch in devices.DEVICES if watch.broken),
    )
