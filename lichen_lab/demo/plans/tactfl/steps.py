"""The course of the demo without labels: learn, deploy to a device that only observes, compare."""

import asyncio
from typing import Any, Final

from lichen_lab.demo.core import lichen_commands, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.observer import observe
from lichen_lab.demo.core.results import take_devices
from lichen_lab.demo.core.scenario import PreparedDemo
from lichen_lab.demo.plans.tactfl import collect_results, devices
from lichen_lab.demo.plans.tactfl.prepare import labelled_file
from lichen_lab.demo.plans.tactfl.results import UnlabelledStory

SEEDS: Final = 3
"""Initial models that the rivals begin with."""


async def live(fleet: DemoFleet[PreparedDemo[UnlabelledStory]]) -> None:
    """From the first process to the last."""
    story = fleet.stage.story
    async with fleet.running():
        await fleet.learn(fleet.announced)
        model = fleet.view.model
        if model is not None:
            fleet.screen.say(
                f"version {model.version} is fine-tuned and exported: an ONNX bundle of "
                f"{model.bundle.size} bytes"
            )
        fleet.tell_chaos(story)
        # The observing device's stream takes its time; the comparison uses the idle processor meanwhile.
        async with asyncio.TaskGroup() as both:
            observing = both.create_task(observe(fleet))
            both.create_task(_look_back(fleet))
        story.observer = observing.result()


async def _look_back(fleet: DemoFleet[PreparedDemo[UnlabelledStory]]) -> None:
    """Read the coordinator's history, end the training agents, and train the rivals."""
    story = fleet.stage.story
    history = await lichen_commands.history(fleet)
    story.take(history)
    take_devices(story.devices, history)
    collect_results.absent(story, devices.DEVICES)
    collect_results.weighed(story, history)
    if (share := story.relative(story.broken)) is not None:
        fleet.screen.say(f"{story.broken}, which is broken, weighed {share:.2f} of an equal share in the end")
    await fleet.stop_agents()
    collect_results.rivals(story, await _rivals(fleet))
    fleet.screen.say("what the labelled windows give without a fleet is known")


async def _rivals(fleet: DemoFleet[PreparedDemo[UnlabelledStory]]) -> list[dict[str, Any]]:
    """Train and judge them."""
    seeds = [fleet.options.seed + number for number in range(SEEDS)]
    job = fleet.job(labelled=str(labelled_file(fleet.layout)), seeds=seeds)
    what = "models without a fleet to be trained and judged"
    return await side_jobs.run(fleet, "rivals", "lichen_lab.demo.plans.tactfl.comparison", job, what)
