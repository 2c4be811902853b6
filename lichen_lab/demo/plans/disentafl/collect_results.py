"""Collects the routed demo's results from coordinator, broker, devices and the evaluating side job."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from edge_agent.inference.onnx_models.window_model import read_manifest
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import Layout, PreparedDemo
from lichen_lab.demo.core.traffic import TrafficCounter, TrafficTurn
from lichen_lab.demo.plans.disentafl import observing
from lichen_lab.demo.plans.disentafl.results import Bundle, DisentaflResults, ModelMove, WatchResults
from models.contract import Profile
from models.methods.disentafl.routing import blob_names
from protocol.tasks.task import LABEL, Task

MODELS: Final = "models"


def bundle_folder(layout: Layout, name: str, digest: str) -> Path:
    """Folder in which a device has unpacked a bundle."""
    return layout.state(name) / MODELS / digest


def take_devices(results: DisentaflResults, fleet: DemoFleet[PreparedDemo[DisentaflResults]]) -> None:
    """Fill in each device's state and number of starts."""
    for device in results.devices:
        known = fleet.view.devices.get(device.name)
        device.windows = (known.windows or 0) if known else 0
        if device.name in fleet.children:
            device.starts = fleet.children[device.name].starts
        lines = observing.predictions_of(fleet.layout.predictions(device.name), fleet.options.rounds)
        device.predictions, device.live = len(lines), observing.share_right(lines).get(LABEL)


def take_traffic(
    results: DisentaflResults, task: Task, history: dict[str, Any], traffic: TrafficCounter
) -> None:
    """Fill in each device's rounds: route from the blobs of its updates, bytes from the broker's traffic."""
    results.blobs = dict(traffic.sizes)
    updates = [{**update, "round": row["round"]} for row in history["rounds"] for update in row["updates"]]
    add_moves(results.devices, task, updates, traffic.turns())


def add_moves(
    devices: Iterable[WatchResults],
    task: Task,
    updates: Iterable[dict[str, Any]],
    turns: dict[str, dict[int, TrafficTurn]],
) -> None:
    """Add a :class:`ModelMove` for each accepted update."""
    named = {device.name: device for device in devices}
    for row in updates:
        device = named.get(row["device"])
        if device is None:
            continue
        sent = tuple(row["blobs"] or ())
        profile, domains = blob_names.profile_of(task, sent), blob_names.domains_of(sent)
        # From its sensors, not from what it sent: else a device that sends everything would be on its route.
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


def take_bundles(
    results: DisentaflResults, stage: PreparedDemo[DisentaflResults], traffic: TrafficCounter
) -> None:
    """Fill in the last model on each device's disk."""
    for device in results.devices:
        pointer = traffic.pointers.get(device.name)
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


def take_scores(results: DisentaflResults, lines: Iterable[dict[str, Any]]) -> None:
    """Fill in the scores of bundles, and of devices trained alone."""
    named = {device.name: device for device in results.devices}
    for line in lines:
        if "supernet_up" in line:
            results.supernet_up = int(line["supernet_up"])
        elif "scores" in line:
            named[line["device"]].scores = dict(line["scores"])
        else:
            named[line["device"]].alone = dict(line["alone"])
