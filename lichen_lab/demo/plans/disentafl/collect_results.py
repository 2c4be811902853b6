"""The story of a routed run, from what the coordinator, broker, devices and the judging child know."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from edge_agent.inference.onnx_models.window_model import read_manifest
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import Layout, PreparedDemo
from lichen_lab.demo.core.traffic import Onlooker, TrafficTurn
from lichen_lab.demo.plans.disentafl import observing
from lichen_lab.demo.plans.disentafl.results import Bundle, ModelMove, RoutedStory, WatchStory
from models.contract import Profile
from models.methods.disentafl.routing import blob_names
from protocol.tasks.task import LABEL, Task

MODELS: Final = "models"


def bundle_folder(layout: Layout, name: str, digest: str) -> Path:
    """Where a device has unpacked a bundle."""
    return layout.state(name) / MODELS / digest


def devices(story: RoutedStory, fleet: DemoFleet[PreparedDemo[RoutedStory]]) -> None:
    """What the devices say of themselves, and how often they were started."""
    for device in story.devices:
        known = fleet.view.devices.get(device.name)
        device.windows = (known.windows or 0) if known else 0
        if device.name in fleet.children:
            device.starts = fleet.children[device.name].starts
        said = observing.said(fleet.layout.predictions(device.name), fleet.options.rounds)
        device.predictions = len(said)
        device.live = observing.share_right(said).get(LABEL)


def wire(story: RoutedStory, task: Task, told: dict[str, Any], seen: Onlooker) -> None:
    """Each device's rounds: whose route by the blobs it sent, what it moved by what the broker carried."""
    story.blobs = dict(seen.sizes)
    updates = [{**update, "round": row["round"]} for row in told["rounds"] for update in row["updates"]]
    moves(story.devices, task, updates, seen.turns())


def moves(
    told: Iterable[WatchStory],
    task: Task,
    updates: Iterable[dict[str, Any]],
    turns: dict[str, dict[int, TrafficTurn]],
) -> None:
    """One :class:`ModelMove` for each accepted update: its round, device, and the blobs it moved."""
    named = {device.name: device for device in told}
    for row in updates:
        device = named.get(row["device"])
        if device is None:
            continue
        sent = tuple(row["blobs"] or ())
        profile, domains = blob_names.profile_of(task, sent), blob_names.domains_of(sent)
        # What it has, not what it sent: a device that sends everything would be on its route else.
        has = {*device.sensors, *device.later}
        own = Profile(
            tuple(m for m in profile.modalities if m in has),
            tuple(o for o in profile.targets if o in device.targets),
        )
        turn = turns.get(device.name, {}).get(row["round"], TrafficTurn())
        device.moves.append(
            ModelMove(
                round=row["round"],
                modalities=profile.modalities,
                targets=profile.targets,
                domain=domains[0] if domains else None,
                route=blob_names.route(task, own, domains[:1]),
                fetched=turn.blobs,
                sent=sent,
                down=turn.model_bytes,
                up=turn.up,
            )
        )


def bundles(story: RoutedStory, stage: PreparedDemo[RoutedStory], seen: Onlooker) -> None:
    """The model that each device ended with, as it lies on its disk."""
    for device in story.devices:
        pointer = seen.pointers.get(device.name)
        if pointer is None:
            continue
        manifest = read_manifest(bundle_folder(stage.layout, device.name, pointer.bundle.digest))
        device.bundle = Bundle(
            version=manifest.version,
            digest=pointer.bundle.digest,
            size=pointer.bundle.size,
            modalities=tuple(modality.name for modality in manifest.modalities),
            targets=tuple(target.name for target in manifest.targets or stage.task.objectives[:1]),
        )


def judged(story: RoutedStory, lines: Iterable[dict[str, Any]]) -> None:
    """Scores of bundles and of devices by themselves."""
    named = {device.name: device for device in story.devices}
    for line in lines:
        if "supernet_up" in line:
            story.supernet_up = int(line["supernet_up"])
        elif "scores" in line:
            named[line["device"]].scores = dict(line["scores"])
        else:
            named[line["device"]].alone = dict(line["alone"])
