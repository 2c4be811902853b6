"""The course of QQR's demo: learn, roll out to devices that only observe, compare with devices alone."""

import asyncio
from functools import partial
from typing import Any, Final

from lichen_lab.demo.core import lichen_commands, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.results import ObserverStory, take_devices
from lichen_lab.demo.core.scenario import PreparedDemo
from lichen_lab.demo.plans.qqr import simulated_seeds
from lichen_lab.demo.plans.qqr.results import Sizes, Story
from lichen_lab.demo.rollout.live_predictions import hear
from lichen_lab.demo.rollout.results import COMPLETE
from lichen_lab.demo.rollout.steps import Act
from lichen_lab.simulation.data import spar_fleet

_STUDY: Final = "study-{}"
_STUDIES: Final = 3
"""Processes that simulate, side by side."""


async def live(fleet: DemoFleet[PreparedDemo[Story]]) -> None:
    """From the first process to the last."""
    story = fleet.stage.story
    async with fleet.running():
        if fleet.options.study:
            await _start_study(fleet)
        note = partial(_progress, fleet) if fleet.options.study else None
        await fleet.learn(fleet.learned, note)
        fleet.screen.say(f"all rounds are over, and version {fleet.options.rounds} is exported")
        fleet.tell_chaos(story)
        history = await lichen_commands.history(fleet)
        story.take(history)
        take_devices(story.devices, history)
        await fleet.stop_agents()
        # The rollouts take their time; the baseline uses the idle processor meanwhile.
        async with asyncio.TaskGroup() as both:
            observing = both.create_task(_roll_out(fleet, story))
            both.create_task(_judge(fleet, story))
        story.observer = observing.result()
        story.study = await _finish_study(fleet)


async def _roll_out(fleet: DemoFleet[PreparedDemo[Story]], story: Story) -> ObserverStory | None:
    """The last act; then what the canary says with the version that it kept."""
    if story.rollout is None:
        return None
    act = Act(fleet, story.rollout)
    await act.play()
    if story.rollout.good is None or story.rollout.good.phase != COMPLETE:
        return None
    try:
        return await hear(fleet, act, story.rollout.good.version)
    finally:
        act.read()


async def _start_study(fleet: DemoFleet[PreparedDemo[Story]]) -> None:
    """Begin to simulate the seeds and variants: some processes, that idle processors take from each other."""
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


def _study_lines(fleet: DemoFleet[PreparedDemo[Story]]) -> list[simulated_seeds.SeedLine]:
    """What the simulations have found so far."""
    files = sorted(fleet.layout.root.glob(_STUDY.format("*.jsonl")))
    return sorted((line for file in files for line in simulated_seeds.read(file)), key=lambda line: line.seed)


async def _finish_study(fleet: DemoFleet[PreparedDemo[Story]]) -> list[simulated_seeds.SeedLine]:
    """Wait for the simulated fleets; an empty list where there are none."""
    for name, child in list(fleet.children.items()):
        if name.startswith(_STUDY.format("")):
            await side_jobs.finish(fleet, child, "the simulated fleets")
    return _study_lines(fleet)


def _progress(fleet: DemoFleet[PreparedDemo[Story]]) -> str:
    finished = len(_study_lines(fleet))
    total = fleet.options.study_seeds * (len(simulated_seeds.VARIANTS) + 1)
    return f"study beside it, at low priority: {finished}/{total} simulated fleets"


async def _judge(fleet: DemoFleet[PreparedDemo[Story]], story: Story) -> None:
    """See what each training device reaches alone with the windows in its own store."""
    stores = {d.name: str(fleet.layout.state(d.name) / "store") for d in spar_fleet.DEVICES}
    job = fleet.job(stores=stores, rounds=fleet.options.rounds)
    what = "what each device reaches alone"
    tell_baseline(
        story, await side_jobs.run(fleet, "alone", "lichen_lab.demo.plans.qqr.local_baseline", job, what)
    )
    fleet.screen.say("what each device reaches alone on the windows in its own store is known")


def tell_baseline(story: Story, rows: list[dict[str, Any]]) -> None:
    """Take what each device reaches alone, and the sizes."""
    alone = {row["device"]: float(row["accuracy"]) for row in rows if "device" in row}
    for device in story.devices:
        device.alone = alone.get(device.name)
    for row in rows:
        if "sizes" in row:
            story.sizes = Sizes(**row["sizes"])
