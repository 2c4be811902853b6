"""The course of QQR's demo: learn, roll out to devices that only observe, compare with devices alone."""

import asyncio
import json
from pathlib import Path
from typing import Any

from lichen.demo import beside, plan, study
from lichen.demo.fleet import Fleet
from lichen.demo.prepare import Stage
from lichen.demo.rollout.act import Act
from lichen.demo.rollout.listening import listen
from lichen.demo.rollout.story import COMPLETE
from lichen.demo.story import DeviceStory, ObserverStory, RoundStory, Sizes, Story


async def live(fleet: Fleet[Stage]) -> None:
    """From the first process to the last."""
    story: Story = fleet.stage.story
    async with fleet.running():
        if fleet.options.study:
            await beside.start_study(fleet)
            fleet.note = lambda: _progress(fleet)
        await fleet.learn(lambda: learned(fleet))
        fleet.screen.say(f"all rounds are over, and version {fleet.options.rounds} is exported")
        fleet.tell_chaos(story)
        history = await beside.history(fleet)
        tell_history(story, history)
        await fleet.stop_agents()
        # The rollouts take their time; the baseline uses the idle processor meanwhile.
        async with asyncio.TaskGroup() as both:
            observing = both.create_task(_roll_out(fleet, story))
            both.create_task(_judge(fleet, story))
        story.observer = observing.result()
        story.study = await beside.finish_study(fleet)


async def _roll_out(fleet: Fleet[Stage], story: Story) -> ObserverStory | None:
    """The last act; then what the canary says with the version that it kept."""
    if story.rollout is None:
        return None
    act = Act(fleet, story.rollout)
    await act.play()
    if story.rollout.good is None or story.rollout.good.phase != COMPLETE:
        return None
    try:
        return await listen(fleet, act, story.rollout.good.version)
    finally:
        act.read()


def learned(fleet: Fleet[Stage]) -> bool:
    """Whether the last round's model is made and exported."""
    told = fleet.view.round
    return told is not None and told.phase == "done" and told.version == fleet.options.rounds


def announced(fleet: Fleet[Stage]) -> bool:
    """Whether the last round's model is exported and announced."""
    return fleet.view.model is not None and fleet.view.model.version == fleet.options.rounds


def _progress(fleet: Fleet[Stage]) -> str:
    finished = len(beside.study_lines(fleet))
    total = fleet.options.study_seeds * (len(study.VARIANTS) + 1)
    return f"study beside it, at low priority: {finished}/{total} simulated fleets"


async def _judge(fleet: Fleet[Stage], story: Story) -> None:
    """See what each training device reaches alone with the windows in its own store."""
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


def finish(stage: Stage) -> Path:
    """Write ``report.json`` and ``report.html``; returns the page's path."""
    from lichen.demo.report.render import write  # noqa: PLC0415 - matplotlib takes a second to import

    root, story = stage.layout.root, stage.story
    story.save(root / "report.json")
    (root / "faults.json").write_text(json.dumps({d.name: d.injected for d in story.devices}, indent=1))
    write(story, root / "report.html")
    return root / "report.html"
