"""One demo run from the first file to the report, and the checks that say whether it worked."""

import asyncio
import json
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from lichen.demo import beside, observer, plan, study
from lichen.demo.fleet import Fleet
from lichen.demo.observing import observe
from lichen.demo.prepare import Stage, prepare
from lichen.demo.screen import Screen
from lichen.demo.story import Check, DeviceStory, RoundStory, Sizes, Story
from lichen.demo.study import ALONE, spread
from protocol.errors import Transient

PROTOTYPE_LIMIT_BYTES: Final = 2048
DELTA_LIMIT: Final = 0.27
MEMORY_GOAL_MB: Final = 90.0


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
        story.struck = fleet.struck
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


def checks(story: Story, options: plan.Options) -> list[Check]:
    """What must hold for the demo to have worked, and what was found besides."""
    detail = f"{len(story.rounds)} of {options.rounds}, with {_mean_accepted(story):.1f} devices a round"
    finished = Check("all rounds were finished", len(story.rounds) == options.rounds, detail)
    found = [finished, *_deployed(story), _above_alone(story), *_simulated(story), *_sizes(story)]
    if story.chaos:
        detail = f"the coordinator and {story.struck or 'nobody'}, SIGKILL in mid-round"
        found.insert(
            1, Check("killed processes came back and the rounds went on", bool(story.struck), detail)
        )
    return found


def _deployed(story: Story) -> list[Check]:
    watched = story.observer
    predicts, free = "the ONNX model predicts on the observing device", "torch is absent there"
    if watched is None:
        return [
            Check(predicts, ok=False, detail="it never ran"),
            Check(free, ok=False, detail="it never ran"),
        ]
    live = watched.accuracy()
    detail = f"version {watched.version}, {len(watched.predictions)} windows, {_percent(live)} right"
    return [
        Check(predicts, live is not None, detail),
        Check(free, watched.torch_free, f"import torch fails in {watched.how}"),
        Check(
            "the observing agent takes under 90 MB after start",
            (watched.memory_mb or 0.0) < MEMORY_GOAL_MB,
            f"{watched.memory_mb or 0:.0f} MB (PSS), {watched.rss_mb or 0:.0f} MB (RSS)",
            must=False,
        ),
    ]


def _above_alone(story: Story) -> Check:
    what = "the fleet is above its devices alone"
    if story.accuracy is None or not story.alone:
        return Check(what, ok=False, detail="one of them was not judged")
    mean, sd = spread(story.alone)
    margin = story.accuracy - mean
    detail = (
        f"{_percent(story.accuracy)} against {_percent(mean)} ± {100 * sd:.1f} over devices: "
        f"{100 * margin:+.1f} points"
    )
    return Check(what, margin > 0, detail)


def _simulated(story: Story) -> list[Check]:
    found = []
    for row in study.summarise(story.study):
        if row.variant == study.FEDERATED:
            continue
        detail = f"{100 * row.margin:+.1f} ± {100 * row.margin_sd:.1f} points over {row.seeds} seeds"
        title = "sharing beats a device alone" if row.variant == ALONE else f"prototypes beat {row.variant}"
        # Which way of imputing is better is a finding, with its spread; that sharing helps is a promise.
        found.append(Check(f"in simulation, {title}", row.margin > 0, detail, must=row.variant == ALONE))
    return found


def _sizes(story: Story) -> list[Check]:
    sizes = story.sizes
    if sizes is None:
        return [Check("sizes on the wire", ok=False, detail="they were not measured")]
    small = sizes.prototypes_4bit < PROTOTYPE_LIMIT_BYTES
    detail = f"{sizes.delta_int8} of {sizes.delta_float32} bytes, {100 * sizes.ratio:.1f} %"
    return [
        Check("a 4-bit prototype upload is under 2 KB on the wire", small, f"{sizes.prototypes_4bit} bytes"),
        Check("an int8 update is under 27 % of its float32 size", sizes.ratio < DELTA_LIMIT, detail),
    ]


def _mean_accepted(story: Story) -> float:
    return sum(len(r.accepted) for r in story.rounds) / max(1, len(story.rounds))


def _percent(value: float | None) -> str:
    return "nothing" if value is None else f"{100 * value:.1f} %"


def finish(story: Story, stage: Stage) -> Path:
    """Write ``report.json`` and ``report.html``; returns the page's path."""
    from lichen.demo.report.render import write  # noqa: PLC0415 - matplotlib takes a second to import

    root = stage.layout.root
    story.save(root / "report.json")
    (root / "faults.json").write_text(json.dumps({d.name: d.injected for d in story.devices}, indent=1))
    write(story, root / "report.html")
    return root / "report.html"
