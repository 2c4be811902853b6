"""One demo run from the first file to the report."""

import asyncio
import json
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lichen.demo import beside, observer, plan
from lichen.demo.checks import checks
from lichen.demo.fleet import Fleet
from lichen.demo.observing import observe
from lichen.demo.prepare import Stage, prepare
from lichen.demo.screen import Screen
from lichen.demo.story import DeviceStory, RoundStory, Sizes, Story
from protocol.errors import Transient


async def run(options: plan.Options, screen: Screen) -> Story:
    """The whole demo.

    Raises:
        Misconfigured: data, environment or output folder are not as they must be.
        Transient: something did not happen in time; the message says what was waited for.
    """
    place = await asyncio.to_thread(observer.environment, options.observer_python)
    stage = await asyncio.to_thread(prepare, options, version("lichen"))
    screen.say(f"recordings, faults and configurations are in {stage.layout.root}")
    story = stage.story
    fleet = Fleet(stage, options, place, screen)
    try:
        async with asyncio.timeout(options.timeout_s):
            await _interruptible(_live(fleet, story))
    except TimeoutError:
        raise Transient(
            f"the demo was not over after {options.timeout_s:.0f} s; it waited for {fleet.doing}; "
            f"{fleet.why()}; --timeout-s sets the time"
        ) from None
    finally:
        story.events, story.seconds = screen.events, screen.seconds
    story.checks = checks(story, options)
    finish(story, stage)
    return story


async def _interruptible(course: Any) -> None:
    """SIGINT and SIGTERM cancel the course, so that every child is stopped in order."""
    task = asyncio.ensure_future(course)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _live(fleet: Fleet, story: Story) -> None:
    async with fleet.running():
        await fleet.learn()
        fleet.tell_chaos(story)
        # The observing device's stream takes its time; the baseline uses the idle processor meanwhile.
        async with asyncio.TaskGroup() as both:
            observing = both.create_task(observe(fleet))
            both.create_task(_judge(fleet, story))
        story.observer = observing.result()
        story.study = await beside.finish_study(fleet)


async def _judge(fleet: Fleet, story: Story) -> None:
    """Read the coordinator's history, end the training agents, and see what each reaches alone."""
    tell_history(story, await beside.history(fleet))
    await fleet.stop_agents()
    stores = {d.name: store_folder(fleet.stage.layout, d.name) for d in plan.DEVICES}
    tell_baseline(story, await beside.baseline(fleet, stores))
    fleet.screen.say("what each device reaches alone on the windows in its own store is known")


def store_folder(layout: plan.Layout, name: str) -> Path:
    """Where an agent keeps its windows."""
    return layout.state(name) / "store"


def tell_history(story: Story, history: dict[str, Any]) -> None:
    """Take rounds, devices and the confusion matrix from the coordinator's database."""
    up = down = 0
    for row in history["rounds"]:
        up += row["bytes_up"] or 0
        down += row["bytes_down"] or 0
        if row["metrics"] or row["bytes_up"]:
            accepted = tuple(u["device"] for u in row["updates"] if not u["lost"])
            accuracy = row["metrics"].get("accuracy")
            story.rounds.append(RoundStory(row["round"], accuracy, up, down, accepted))
    story.confusion = (history["confusion"] or {}).get("matrix", [])
    last: dict[str, dict[str, Any]] = {u["device"]: u for row in history["rounds"] for u in row["updates"]}
    states = {row["device"]: row for row in history["devices"]}
    for device in story.devices:
        _tell_device(device, last.get(device.name), states.get(device.name))


def _tell_device(device: DeviceStory, update: dict[str, Any] | None, state: dict[str, Any] | None) -> None:
    if update is not None:
        device.windows = int(update["samples"])
        device.counts = {m: list(c) for m, c in update["counts"].items()}
        device.quality = dict(update["quality"])
        device.missing = dict(update["missing"])
    for modality, known in ((state or {}).get("modalities") or {}).items():
        device.reasons[modality] = list(known.get("reasons") or [])


def tell_baseline(story: Story, rows: list[dict[str, Any]]) -> None:
    """Take what each device reaches alone, and the sizes."""
    alone = {row["device"]: float(row["accuracy"]) for row in rows if "device" in row}
    for device in story.devices:
        device.alone = alone.get(device.name)
    for row in rows:
        if "sizes" in row:
            story.sizes = Sizes(**row["sizes"])


def finish(story: Story, stage: Stage) -> Path:
    """Write ``report.json`` and ``report.html``; returns the page's path."""
    from lichen.demo.report.render import write  # noqa: PLC0415 - matplotlib takes a second to import

    root = stage.layout.root
    story.save(root / "report.json")
    (root / "faults.json").write_text(json.dumps({d.name: d.injected for d in story.devices}, indent=1))
    write(story, root / "report.html")
    return root / "report.html"
