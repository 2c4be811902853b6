"""The files of the routed demo: what each kind of watch records, the unseen people, all configurations."""

from pathlib import Path

from edge_agent.offline import windows_of
from lichen import spar
from lichen.demo import plan
from lichen.demo.kind import Stage
from lichen.demo.plans.disentafl import cast, recordings
from lichen.demo.plans.disentafl.story import RoutedStory, WatchStory
from lichen.demo.prepare import begin, configured, labelled
from models import windowset
from models.contract import WindowSet
from models.streams.recording import read
from protocol.task import Task


def prepare(options: plan.Options, version: str) -> Stage[RoutedStory]:
    """Write everything that the processes read.

    Raises:
        Misconfigured: SPAR is not here, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    layout, series = begin(options, spar.load)
    task = cast.task(options.rounds, seed=options.seed)
    lengths: dict[str, float] = {}
    for watch in cast.DEVICES:
        own, later = recordings.played(series, watch, options.seed)
        spar.save(layout.recording(watch.name), own)
        if watch.later:
            spar.save(layout.recording(cast.later(watch.name)), later)
        lengths[watch.name] = spar.seconds(own)
    watched = recordings.observed(series, options.seed)
    spar.save(layout.recording(cast.OBSERVED.name), watched)
    lengths[cast.OBSERVED.name] = spar.seconds(watched)
    windowset.save(layout.unseen, unseen(task, series, layout))
    watches = {watch.name: watch for watch in cast.DEVICES}
    stage = Stage(
        layout=layout,
        task=task,
        story=told(task, options, version),
        people={name: f"{watch.person}: {watch.kind}" for name, watch in watches.items()},
        agent=lambda name: cast.watch_config(layout, watches[name], options),
        lengths_s=lengths,
    )
    observing = cast.observer_config(layout)
    others = {cast.OBSERVED.name: observing, "coordinator": plan.coordinator_config(layout)}
    return configured(stage, others)


def told(task: Task, options: plan.Options, version: str) -> RoutedStory:
    """The story before anything happened."""
    story = RoutedStory(
        labels=task.labels,
        modalities=task.modality_names,
        targets={target.name: target.labels for target in task.objectives},
        unseen=plan.UNSEEN,
        chaos=options.chaos,
        version=version,
    )
    story.devices = [
        WatchStory(
            name=watch.name,
            person=watch.person,
            kind=watch.kind,
            sensors=watch.sensors,
            targets=watch.targets,
            later=watch.later,
            observes=watch is cast.OBSERVED,
        )
        for watch in (*cast.DEVICES, cast.OBSERVED)
    ]
    return story


def unseen(task: Task, series: tuple[spar.Series, ...], layout: plan.Layout) -> WindowSet:
    """What the fleet is judged on: whole sensors, all targets, people no training device has met."""
    path = Path(layout.recording("unseen"))
    parts = []
    for person in plan.UNSEEN:
        spar.save(path, recordings.whole(spar.of_person(series, person), 0))
        parts.append(windows_of(task, read(path)))
    path.unlink()
    return labelled(windowset.concat(parts))
