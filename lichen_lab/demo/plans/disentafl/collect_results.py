"""Collects the routed demo's results from coordinator, broker, devices and the evaluating side job."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from edge_agent.inference.onnx_models.window_model import read_manifest
from lichen_lab.demo.core import observer, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import Layout, PreparedDemo
from lichen_lab.demo.core.traffic import TrafficCounter, TrafficTurn
from lichen_lab.demo.plans.disentafl import devices as cast
from lichen_lab.demo.plans.disentafl.results import (
    Bundle,
    DisentaflResults,
    ModelMove,
    RoutedObserver,
    WatchResults,
)
from lichen_lab.simulation.processes.process import Child
from models.contract import Profile
from models.methods.disentafl.routing import blob_names
from protocol.tasks.task import LABEL, Task

_SLACK_S: Final = 60.0
Line = dict[str, Any]


def predictions_of(path: Path, version: int) -> list[Line]:
    """A device's predictions with this version."""
    return [row for row in side_jobs.lines(path) if row["version"] == version]


def share_right(lines: Sequence[Line]) -> dict[str, float]:
    """By classification target, the share of right windows among those with a known truth."""
    right: dict[str, list[bool]] = {}
    for line in lines:
        answers = {LABEL: line, **line.get("targets", {})}
        for name, answer in answers.items():
            if answer.get("truth") is not None and "label" in answer:
                right.setdefault(name, []).append(answer["label"] == answer["truth"])
    return {name: sum(values) / len(values) for name, values in right.items()}


def regression_values(lines: Sequence[Line], target: str) -> list[tuple[float, float, float | None]]:
    """Of a regression target: time, prediction, and the truth if known."""
    found = []
    for line in lines:
        answer = line.get("targets", {}).get(target)
        if answer is not None:
            found.append((float(line["t"]), float(answer["value"]), answer.get("truth")))
    return found


def r2(pairs: Sequence[tuple[float, float, float | None]]) -> float | None:
    """r2 of the predictions with a known truth."""
    known = [(guess, true) for _, guess, true in pairs if true is not None]
    if not known:
        return None
    mean = sum(true for _, true in known) / len(known)
    spread = sum((true - mean) ** 2 for _, true in known)
    return 1 - sum((guess - true) ** 2 for guess, true in known) / max(spread, 1e-12)


async def listen(
    fleet: DemoFleet[PreparedDemo[DisentaflResults]], child: Child, traffic: TrafficCounter
) -> None:
    """Read the predictions over one turn of the observing device's recording."""
    name, screen = cast.OBSERVED.name, fleet.screen
    results = await observer.initial_results(RoutedObserver, fleet, name, cast.OBSERVED.person)
    length = fleet.stage.lengths_s[name]
    enough = length - 2 * fleet.stage.task.window.length_s
    lines: list[Line] = []

    def over() -> bool:
        lines[:] = predictions_of(fleet.layout.predictions(name), fleet.options.rounds)
        if not lines:
            return False
        screen.note = f"{name}, live: {len(lines)} windows"
        return bool(float(lines[-1]["t"]) - float(lines[0]["t"]) >= enough)

    what = f"a turn of {name}'s stream ({length:.0f} s of it)"
    bound_s = length / cast.OBSERVER_SPEED + _SLACK_S
    await observer.listen(fleet, child, results, what=what, over=over, bound_s=bound_s)
    # Predictions of its own model alone; of these, the last turn.
    lines = [line for line in lines if float(line["t"]) > float(lines[-1]["t"]) - length]
    results.predictions = observer.parse(lines)
    results.right, results.values = share_right(lines), regression_values(lines, cast.SPEED)
    results.explained = r2(results.values)
    results.version = traffic.pointers[name].version
    fleet.stage.results.observer = results
    right = ", ".join(f"{cast.IN_WORDS[name]} {100 * share:.0f} %" for name, share in results.right.items())
    screen.say(
        f"{name}, live on person {cast.OBSERVED.person}, by its accelerometer alone: right in {right}; "
        f"{cast.IN_WORDS[cast.SPEED]} r2 {results.explained or 0:.2f}; "
        f"memory {results.memory_mb or 0:.0f} MB (PSS)"
    )


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
        lines = predictions_of(fleet.layout.predictions(device.name), fleet.options.rounds)
        device.predictions, device.live = len(lines), share_right(lines).get(LABEL)


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
