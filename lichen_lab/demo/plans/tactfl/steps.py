"""Steps of the demo without labels: train, deploy to a device that only observes, compare."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lichen_lab.demo.core import lichen_commands, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.observer import observe
from lichen_lab.demo.core.results import take_devices
from lichen_lab.demo.core.scenario import PreparedDemo
from lichen_lab.demo.plans.tactfl import devices
from lichen_lab.demo.plans.tactfl.devices import UnlabelledWatch
from lichen_lab.demo.plans.tactfl.prepare import labelled_file
from lichen_lab.demo.plans.tactfl.results import LABELLED, RANDOM, Rival, TactflResults, Weighing

SEEDS: Final = 3
"""Initial models of the rivals."""


async def live(fleet: DemoFleet[PreparedDemo[TactflResults]]) -> None:
    """Run the demo, and fill in its results."""
    results = fleet.stage.results
    async with fleet.running():
        await fleet.learn(fleet.announced)
        model = fleet.view.model
        if model is not None:
            fleet.screen.say(
                f"version {model.version} is fine-tuned and exported: an ONNX bundle of "
                f"{model.bundle.size} bytes"
            )
        fleet.record_chaos(results)
        # The comparison uses the processor that is idle during the observing device's stream.
        async with asyncio.TaskGroup() as both:
            observing = both.create_task(observe(fleet))
            both.create_task(_look_back(fleet))
        results.observer = observing.result()


async def _look_back(fleet: DemoFleet[PreparedDemo[TactflResults]]) -> None:
    """Read the coordinator's history, end the training agents, and train the rivals."""
    results = fleet.stage.results
    history = await lichen_commands.history(fleet)
    results.take(history)
    take_devices(results.devices, history)
    mark_absent_sensors(results, devices.DEVICES)
    take_weighings(results, history)
    if (share := results.relative(results.broken)) is not None:
        fleet.screen.say(
            f"{results.broken}, which is broken, weighed {share:.2f} of an equal share in the end"
        )
    await fleet.stop_agents()
    take_rivals(results, await _rivals(fleet))
    fleet.screen.say("what the labelled windows give without a fleet is known")


async def _rivals(fleet: DemoFleet[PreparedDemo[TactflResults]]) -> list[dict[str, Any]]:
    """Train and evaluate them."""
    seeds = [fleet.options.seed + number for number in range(SEEDS)]
    job = fleet.job(labelled=str(labelled_file(fleet.layout)), seeds=seeds)
    what = "models without a fleet to be trained and evaluated"
    return await side_jobs.run(fleet, "rivals", "lichen_lab.demo.plans.tactfl.comparison", job, what)


def take_weighings(results: TactflResults, history: Mapping[str, Any]) -> None:
    """Fill in weights and similarities by round."""
    results.weighed = [
        Weighing(
            round=row["round"],
            weights=found["weights"],
            similarity={part: similarity_matrix(rows) for part, rows in found["similarity"].items()},
            warnings=tuple(found["warnings"]),
        )
        for row in history["rounds"]
        if (found := row.get("weighing"))
    ]


def mark_absent_sensors(results: TactflResults, watches: Iterable[UnlabelledWatch]) -> None:
    """Mark absent sensors as missing in all windows: updates do not mention them."""
    sensors = {watch.name: watch.sensors for watch in watches}
    for device in results.devices:
        without = set(results.modalities) - set(sensors[device.name])
        device.missing |= dict.fromkeys(without, 1.0)


def similarity_matrix(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Device -> device -> similarity, of the rows that the coordinator keeps: each has ``others``."""
    return {device: {device: 1.0, **row["others"]} for device, row in rows.items()}


def take_rivals(results: TactflResults, lines: Iterable[Mapping[str, Any]]) -> None:
    """Fill in accuracies by rival, in the order of the seeds."""
    named = {name: Rival(name) for name in (RANDOM, LABELLED)}
    for line in lines:
        named[line["name"]].accuracies.append(float(line["accuracy"]))
    results.rivals = list(named.values())
