"""Steps of QQR's demo: train, roll out to devices that only observe, compare with devices alone."""

import asyncio
from functools import partial
from typing import Any, Final

from lichen_lab.demo.core import lichen_commands, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.results import ObserverResults, take_devices
from lichen_lab.demo.core.scenario import PreparedDemo
from lichen_lab.demo.plans.qqr import simulated_seeds
from lichen_lab.demo.plans.qqr.results import QqrResults, Sizes
from lichen_lab.demo.rollout.results import COMPLETE
from lichen_lab.demo.rollout.steps import RolloutAct, observe_canary
from lichen_lab.simulation.data import spar_fleet

_STUDY: Final = "study-{}"
_STUDIES: Final = 3
"""Processes that simulate in parallel."""


async def live(fleet: DemoFleet[PreparedDemo[QqrResults]]) -> None:
    """Run the demo, and fill in its results."""
    results = fleet.stage.results
    async with fleet.running():
        if fleet.options.study:
            await _start_study(fleet)
        note = partial(_progress, fleet) if fleet.options.study else None
        await fleet.learn(fleet.learned, note)
        fleet.screen.say(f"all rounds are over, and version {fleet.options.rounds} is exported")
        fleet.record_chaos(results)
        history = await lichen_commands.history(fleet)
        results.take(history)
        take_devices(results.devices, history)
        await fleet.stop_agents()
        # The baseline uses the processor that is idle during the rollouts.
        async with asyncio.TaskGroup() as both:
            observing = both.create_task(_roll_out(fleet, results))
            both.create_task(_judge(fleet, results))
        results.observer = observing.result()
        results.study = await _finish_study(fleet)


async def _roll_out(
    fleet: DemoFleet[PreparedDemo[QqrResults]], results: QqrResults
) -> ObserverResults | None:
    """Run the rollouts; then read the canary's predictions with the version that it kept."""
    if results.rollout is None:
        return None
    act = RolloutAct(fleet, results.rollout)
    await act.play()
    if results.rollout.good is None or results.rollout.good.phase != COMPLETE:
        return None
    try:
        return await observe_canary(fleet, act, results.rollout.good.version)
    finally:
        act.read()


async def _start_study(fleet: DemoFleet[PreparedDemo[QqrResults]]) -> None:
    """Start the processes that simulate seeds and variants."""
    first = fleet.options.seed + 1
    seeds = range(first, first + fleet.options.study_seeds)
    for number in range(min(_STUDIES, len(seeds))):
        name = _STUDY.format(number)
        job = {
            "out": str(fleet.layout.root / f"{name}.jsonl"),
            "rounds": fleet.options.rounds,
            "seeds": list(seeds[number::_STUDIES]),
        }
        await fleet.start_beside(name, simulated_seeds.__name__, job)


def _study_lines(fleet: DemoFleet[PreparedDemo[QqrResults]]) -> list[simulated_seeds.SeedLine]:
    """Results of the simulations so far."""
    files = sorted(fleet.layout.root.glob(_STUDY.format("*.jsonl")))
    return sorted((line for file in files for line in simulated_seeds.read(file)), key=lambda line: line.seed)


async def _finish_study(fleet: DemoFleet[PreparedDemo[QqrResults]]) -> list[simulated_seeds.SeedLine]:
    """Wait for the simulated fleets; an empty list if there are none."""
    for name, child in list(fleet.children.items()):
        if name.startswith(_STUDY.format("")):
            await side_jobs.finish(fleet, child, "the simulated fleets")
    return _study_lines(fleet)


def _progress(fleet: DemoFleet[PreparedDemo[QqrResults]]) -> str:
    finished = len(_study_lines(fleet))
    total = fleet.options.study_seeds * (len(simulated_seeds.VARIANTS) + 1)
    return f"study beside it, at low priority: {finished}/{total} simulated fleets"


async def _judge(fleet: DemoFleet[PreparedDemo[QqrResults]], results: QqrResults) -> None:
    """Judge each training device alone, on the windows in its own store."""
    stores = {d.name: str(fleet.layout.state(d.name) / "store") for d in spar_fleet.DEVICES}
    job = fleet.job(stores=stores, rounds=fleet.options.rounds)
    what = "what each device reaches alone"
    take_baseline(
        results, await side_jobs.run(fleet, "alone", "lichen_lab.demo.plans.qqr.local_baseline", job, what)
    )
    fleet.screen.say("what each device reaches alone on the windows in its own store is known")


def take_baseline(results: QqrResults, rows: list[dict[str, Any]]) -> None:
    """Fill in each device's accuracy alone, and the sizes."""
    alone = {row["device"]: float(row["accuracy"]) for row in rows if "device" in row}
    for device in results.devices:
        device.alone = alone.get(device.name)
    for row in rows:
        if "sizes" in row:
            results.sizes = Sizes(**row["sizes"])
