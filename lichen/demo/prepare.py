"""The demo's files: recordings with faults, the unseen people's windows, every process's configuration."""

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lichen import spar
from lichen.broker import free_port
from lichen.demo import kind, plan
from lichen.demo.rollout import cast
from lichen.demo.rollout.story import RolloutStory, Watcher
from lichen.demo.story import DeviceStory, Story
from lichen.faults import share_of
from models import windowset
from models.contract import WindowSet
from protocol.errors import Misconfigured
from protocol.task import Task
from runtime.outputs import writing

_OURS: Final = ("config", "state", "logs", "recordings", "sites", "bad")
_NEEDED: Final = (
    "iotcore",
    "torch",
    "sqlalchemy",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "matplotlib",
    "jinja2",
)
_MARK: Final = ".lichen-demo"
_OUR_FILES: Final = ("*.jsonl*", "report.*", "*.npz", "*.json", "*.bundle")


@dataclass(frozen=True)
class Stage(kind.Stage):
    """All that is ready before the first process starts."""

    story: Story
    fault: tuple[float, float] | None
    """When the observing device's gyroscope is silent, in seconds of its recording."""


def clear(root: Path) -> None:
    """Make the output folder anew; one that the demo did not make is not touched.

    Raises:
        Misconfigured: it holds something that is not the demo's.
    """
    if root.exists() and any(root.iterdir()) and not (root / _MARK).is_file():
        raise Misconfigured(
            f"--out {root}: it is not empty and not from an earlier demo; name another folder"
        )
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        (root / _MARK).write_text("made by lichen demo; the next run replaces what lies here\n")
    for name in _OURS:
        shutil.rmtree(root / name, ignore_errors=True)
    # a set: report.json is found twice
    for file in {found for pattern in _OUR_FILES for found in root.glob(pattern)}:
        file.unlink()


def require() -> None:
    """Everything that a process of the demo, or its report at the very end, imports.

    Raises:
        ModuleNotFoundError: naming the first one that is not installed.
    """
    for name in _NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def prepare(options: plan.Options, version: str) -> Stage:
    """Write everything that the processes read.

    Raises:
        Misconfigured: SPAR is not here, the output folder is somebody else's, or there are too few rounds.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    root = options.out.absolute()
    # What can fail comes before anything of an earlier run is removed.
    if options.rounds < cast.LEAST_ROUNDS:
        raise Misconfigured(
            f"--rounds {options.rounds}: this demo ends with rollouts of two versions that are much alike; "
            f"give it {cast.LEAST_ROUNDS} rounds or more"
        )
    require()
    series = spar.load()
    clear(root)
    layout = plan.Layout(root, free_port())
    task = plan.task(options.rounds, seed=options.seed)
    windowset.save(layout.unseen, labelled(plan.windows(task, plan.unseen(series))))
    story = Story(
        labels=task.labels,
        modalities=task.modality_names,
        unseen=plan.UNSEEN,
        chaos=options.chaos,
        version=version,
        rollout=RolloutStory([Watcher(w.name, w.person, w.site) for w in cast.WATCHES], cast.CANARY.name),
    )
    lengths: dict[str, float] = {}
    for device in plan.DEVICES:
        played = plan.played(series, device, options.seed)
        spar.save(layout.recording(device.name), played.recorded)
        lengths[device.name] = played.seconds
        told = DeviceStory(device.name, device.people, device.trouble)
        for modality in task.modality_names:
            told.injected[modality] = {
                kind: share_of(played.faults, kind, modality, played.seconds)
                for kind in ("outage", "noise", "stuck")
            }
        story.devices.append(told)
        plan.write_toml(layout.config(device.name), plan.agent_config(layout, device.name, options.speed))
    for watch in cast.WATCHES:
        watched = cast.played(series, watch, options.seed)
        spar.save(layout.recording(watch.name), watched.recorded)
        lengths[watch.name] = watched.seconds
        plan.write_toml(layout.config(watch.name), cast.config(layout, watch))
    plan.write_toml(layout.config("coordinator"), cast.coordinator(layout, options.rounds))
    plan.write_toml(layout.config("task"), bare(task))
    return Stage(
        layout=layout,
        task=task,
        story=story,
        people={d.name: ", ".join(map(str, d.people)) for d in plan.DEVICES},
        agent=lambda name: plan.agent_config(layout, name, options.speed),
        lengths_s=lengths,
        fault=cast.fault_of(cast.played(series, cast.CANARY, options.seed)),
    )


def labelled(windows: WindowSet) -> WindowSet:
    """Those windows in which one exercise was done throughout."""
    return windowset.select(windows, windows.y_B >= 0)


def bare(task: Task) -> dict[str, Any]:
    """A task as ``task.toml`` holds it."""
    table: dict[str, Any] = task.model_dump(mode="json", exclude_none=True)
    return table
