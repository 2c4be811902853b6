"""Files of the demo without labels: recordings, labelled windows, all configurations."""

from pathlib import Path

import numpy as np

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
from lichen_lab.demo.plans.tactfl import devices, recordings
from lichen_lab.demo.plans.tactfl.results import TactflResults
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from models.contract import WindowSet
from models.data import window_set
from protocol.tasks.task import Task


def prepare(options: Options, version: str) -> PreparedDemo[TactflResults]:
    """Write all files that the processes read.

    Raises:
        Misconfigured: SPAR is not here, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    layout, series = begin(options, spar.load)
    task = devices.task(options.rounds, str(labelled_file(layout)), seed=options.seed)
    labelled = recordings.labelled_windows(task, series, options.seed)
    window_set.save(labelled_file(layout), labelled)
    window_set.save(layout.unseen, with_labels(spar_fleet.windows(task, spar_fleet.unseen(series))))
    results = initial_results(task, options, version, labelled)
    played = {
        watch.name: recordings.device_recording(series, watch, options.seed) for watch in devices.DEVICES
    }
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


def initial_results(task: Task, options: Options, version: str, labelled: WindowSet) -> TactflResults:
    """The results before the start."""
    return TactflResults(
        labels=task.labels,
        modalities=task.modality_names,
        unseen=spar_fleet.UNSEEN,
        devices=[DeviceResults(watch.name, (watch.person,), watch.trouble) for watch in devices.DEVICES],
        chaos=options.chaos,
        version=version,
        labelled=[int(n) for n in np.bincount(labelled.y_B, minlength=len(task.labels))],
        broken=next(watch.name for watch in devices.DEVICES if watch.broken),
    )
