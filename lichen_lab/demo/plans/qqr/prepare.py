"""Files of QQR's demo: recordings with faults, unseen people's windows, all configurations."""

import json

from lichen_lab.demo.core.prepare import begin, labelled_windows, save_recordings, write_configurations
from lichen_lab.demo.core.results import DeviceResults
from lichen_lab.demo.core.scenario import Options, PreparedDemo, agent_config
from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.demo.rollout import devices as cast
from lichen_lab.demo.rollout.results import RolloutResults, Watcher
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import Task


def prepare(options: Options) -> PreparedDemo[QqrResults]:
    """Write all files that the processes read.

    Raises:
        Misconfigured: SPAR is not here, the output folder is somebody else's, or there are too few rounds.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    if options.rounds < cast.LEAST_ROUNDS:
        raise Misconfigured(
            f"--rounds {options.rounds}: this demo ends with rollouts of two versions that are much alike; "
            f"give it {cast.LEAST_ROUNDS} rounds or more"
        )
    layout, series = begin(options, spar.load)
    task = spar_fleet.task(options.rounds, seed=options.seed)
    window_set.save(layout.unseen, labelled_windows(spar_fleet.windows(task, spar_fleet.unseen(series))))
    results = initial_results(task)
    played = {d.name: spar_fleet.device_recording(series, d, options.seed) for d in spar_fleet.DEVICES}
    watched = {watch.name: cast.watch_recording(series, watch, options.seed) for watch in cast.WATCHES}
    recorded = {name: one.recorded for name, one in {**played, **watched}.items()}
    for device in spar_fleet.DEVICES:
        shares = played[device.name].fault_shares(task.modality_names, ("outage", "noise", "stuck"))
        results.devices.append(DeviceResults(device.name, device.people, device.trouble, injected=shares))
    injected = {device.name: device.injected for device in results.devices}
    (layout.root / "faults.json").write_text(json.dumps(injected, indent=1))
    stage = PreparedDemo(
        layout=layout,
        task=task,
        results=results,
        people={d.name: ", ".join(map(str, d.people)) for d in spar_fleet.DEVICES},
        agent=lambda name: agent_config(layout, name, options.speed),
        lengths_s=save_recordings(layout, recorded),
        fault=cast.fault_of(watched[cast.CANARY.name]),
    )
    watches = {watch.name: cast.config(layout, watch) for watch in cast.WATCHES}
    return write_configurations(stage, {**watches, "coordinator": cast.coordinator(layout, options.rounds)})


def initial_results(task: Task) -> QqrResults:
    """The results before anything happened; the devices are added later."""
    return QqrResults(
        labels=task.labels,
        modalities=task.modality_names,
        unseen=spar_fleet.UNSEEN,
        rollout=RolloutResults([Watcher(w.name, w.person, w.site) for w in cast.WATCHES], cast.CANARY.name),
    )
