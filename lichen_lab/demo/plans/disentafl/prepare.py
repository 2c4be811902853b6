"""Files of the routed demo: recordings by kind of watch, unseen people's windows, all configurations."""

from pathlib import Path

from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.demo.core.prepare import begin, labelled_windows, save_recordings, write_configurations
from lichen_lab.demo.core.scenario import Layout, Options, PreparedDemo, coordinator_config
from lichen_lab.demo.plans.disentafl import devices, recordings
from lichen_lab.demo.plans.disentafl.results import DisentaflResults, WatchResults
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from models.contract import WindowSet
from models.data import window_set
from models.data.streams.recording import read
from protocol.tasks.task import Task


def prepare(options: Options, version: str) -> PreparedDemo[DisentaflResults]:
    """Write all files that the processes read.

    Raises:
        Misconfigured: SPAR is not here, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    layout, series = begin(options, spar.load)
    task = devices.task(options.rounds, seed=options.seed)
    recorded = {devices.OBSERVED.name: recordings.observer_recording(series, options.seed)}
    for watch in devices.DEVICES:
        recorded[watch.name], later = recordings.device_recordings(series, watch, options.seed)
        if watch.later:
            spar.save(layout.recording(devices.later(watch.name)), later)
    window_set.save(layout.unseen, unseen(task, series, layout))
    watches = {watch.name: watch for watch in devices.DEVICES}
    stage = PreparedDemo(
        layout=layout,
        task=task,
        results=initial_results(task, options, version),
        people={name: f"{watch.person}: {watch.kind}" for name, watch in watches.items()},
        agent=lambda name: devices.watch_config(layout, watches[name], options),
        lengths_s=save_recordings(layout, recorded),
    )
    observing = devices.observing_config(layout)
    others = {devices.OBSERVED.name: observing, "coordinator": coordinator_config(layout)}
    return write_configurations(stage, others)


def initial_results(task: Task, options: Options, version: str) -> DisentaflResults:
    """The results before the start."""
    results = DisentaflResults(
        labels=task.labels,
        modalities=task.modality_names,
        targets={target.name: target.labels for target in task.objectives},
        unseen=spar_fleet.UNSEEN,
        chaos=options.chaos,
        version=version,
    )
    results.devices = [
        WatchResults(
            name=watch.name,
            person=watch.person,
            kind=watch.kind,
            sensors=watch.sensors,
            targets=watch.targets,
            later=watch.later,
            observes=watch is devices.OBSERVED,
        )
        for watch in (*devices.DEVICES, devices.OBSERVED)
    ]
    return results


def unseen(task: Task, series: tuple[spar.Series, ...], layout: Layout) -> WindowSet:
    """Windows to evaluate the fleet on: whole sensors, all targets, unseen people."""
    path = Path(layout.recording("unseen"))
    parts = []
    for person in spar_fleet.UNSEEN:
        spar.save(path, recordings.whole_recording(spar.of_person(series, person), 0))
        parts.append(windows_of_recording(task, read(path)))
    path.unlink()
    return labelled_windows(window_set.concat(parts))
