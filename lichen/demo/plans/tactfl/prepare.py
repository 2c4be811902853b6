"""The files of the demo without labels: recordings, labelled windows, every process's configuration."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lichen import spar
from lichen.demo import plan
from lichen.demo.kind import Stage
from lichen.demo.plans.tactfl import cast, recordings
from lichen.demo.plans.tactfl.story import UnlabelledStory
from lichen.demo.prepare import begin, configured
from lichen.demo.prepare import labelled as with_labels
from lichen.demo.story import DeviceStory
from lichen.faults import share_of
from models import windowset
from models.contract import WindowSet
from protocol.task import Task


def prepare(options: plan.Options, version: str) -> Stage[UnlabelledStory]:
    """Write everything that the processes read.

    Raises:
        Misconfigured: SPAR is not here, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    layout, series = begin(options, spar.load)
    task = cast.task(options.rounds, str(labelled_file(layout)), seed=options.seed)
    labelled = recordings.labelled(task, series, options.seed)
    windowset.save(labelled_file(layout), labelled)
    windowset.save(layout.unseen, with_labels(plan.windows(task, plan.unseen(series))))
    story = told(task, options, version, labelled)
    lengths = _devices(layout, series, options, story)
    watched = plan.observed(series, options.seed)
    spar.save(layout.recording(plan.OBSERVER), watched.recorded)
    lengths[plan.OBSERVER] = watched.seconds
    stage = Stage(
        layout=layout,
        task=task,
        story=story,
        people={watch.name: f"{watch.person}: {watch.trouble}" for watch in cast.DEVICES},
        agent=lambda name: plan.agent_config(layout, name, options.speed),
        lengths_s=lengths,
        fault=(watched.faults[0].start_s, watched.faults[0].end_s),
    )
    observing = plan.agent_config(layout, plan.OBSERVER, plan.OBSERVER_SPEED, observe_only=True)
    others = {plan.OBSERVER: observing, "coordinator": plan.coordinator_config(layout)}
    return configured(stage, others)


def labelled_file(layout: plan.Layout) -> Path:
    """The coordinator's labelled windows."""
    return layout.root / "labelled.npz"


def _devices(
    layout: plan.Layout,
    series: Sequence[spar.Series],
    options: plan.Options,
    story: UnlabelledStory,
) -> dict[str, float]:
    """Each training device's recording; returns their lengths in seconds."""
    lengths: dict[str, float] = {}
    for watch, device in zip(cast.DEVICES, story.devices, strict=True):
        played = recordings.played(series, watch, options.seed)
        spar.save(layout.recording(watch.name), played.recorded)
        lengths[watch.name] = played.seconds
        for modality in watch.sensors:
            device.injected[modality] = {
                kind: share_of(played.faults, kind, modality, played.seconds) for kind in ("outage", "noise")
            }
    return lengths


def told(task: Task, options: plan.Options, version: str, labelled: WindowSet) -> UnlabelledStory:
    """The story before anything happened."""
    return UnlabelledStory(
        labels=task.labels,
        modalities=task.modality_names,
        unseen=plan.UNSEEN,
        devices=[DeviceStory(watch.name, (watch.person,), watch.trouble) for watch in cast.DEVICES],
        chaos=options.chaos,
        version=version,
        labelled=[int(n) for n in np.bincount(labelled.y_B, minlength=len(task.labels))],
        broken=next(watch.name for watch in cast.DEVICES if watch.broken),
    )
