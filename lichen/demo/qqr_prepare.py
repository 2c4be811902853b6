"""The files of QQR's demo: recordings with faults, the unseen people's windows, all configurations."""

import json

from lichen import spar
from lichen.demo import plan
from lichen.demo.kind import Stage
from lichen.demo.prepare import begin, configured, labelled
from lichen.demo.qqr_results import Story
from lichen.demo.rollout import cast
from lichen.demo.rollout.story import RolloutStory, Watcher
from lichen.demo.story import DeviceStory
from lichen.faults import share_of
from models import windowset
from protocol.errors import Misconfigured
from protocol.task import Task


def prepare(options: plan.Options, version: str) -> Stage[Story]:
    """Write everything that the processes read.

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
    task = plan.task(options.rounds, seed=options.seed)
    windowset.save(layout.unseen, labelled(plan.windows(task, plan.unseen(series))))
    story = told(task, options, version)
    lengths: dict[str, float] = {}
    for device in plan.DEVICES:
        played = plan.played(series, device, options.seed)
        spar.save(layout.recording(device.name), played.recorded)
        lengths[device.name] = played.seconds
        one = DeviceStory(device.name, device.people, device.trouble)
        for modality in task.modality_names:
            one.injected[modality] = {
                kind: share_of(played.faults, kind, modality, played.seconds)
                for kind in ("outage", "noise", "stuck")
            }
        story.devices.append(one)
    for watch in cast.WATCHES:
        watched = cast.played(series, watch, options.seed)
        spar.save(layout.recording(watch.name), watched.recorded)
        lengths[watch.name] = watched.seconds
    injected = {device.name: device.injected for device in story.devices}
    (layout.root / "faults.json").write_text(json.dumps(injected, indent=1))
    stage = Stage(
        layout=layout,
        task=task,
        story=story,
        people={d.name: ", ".join(map(str, d.people)) for d in plan.DEVICES},
        agent=lambda name: plan.agent_config(layout, name, options.speed),
        lengths_s=lengths,
        fault=cast.fault_of(cast.played(series, cast.CANARY, options.seed)),
    )
    watches = {watch.name: cast.config(layout, watch) for watch in cast.WATCHES}
    return configured(stage, {**watches, "coordinator": cast.coordinator(layout, options.rounds)})


def told(task: Task, options: plan.Options, version: str) -> Story:
    """The story before anything happened; the devices are still to be added."""
    return Story(
        labels=task.labels,
        modalities=task.modality_names,
        unseen=plan.UNSEEN,
        chaos=options.chaos,
        version=version,
        rollout=RolloutStory([Watcher(w.name, w.person, w.site) for w in cast.WATCHES], cast.CANARY.name),
    )
