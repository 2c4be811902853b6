"""The course of the routed demo: learn, plug a sensor in, learn on, run each device's own model, compare."""

import contextlib
import json
from typing import Any, Final

from lichen.demo import beside, plan
from lichen.demo.fleet import ONE_THREAD, Fleet
from lichen.demo.looking_on import looking_on
from lichen.demo.plans.disentafl import cast, observing, telling
from lichen.demo.plans.disentafl.prepare import Stage
from lichen.demo.processes import Child
from lichen.demo.wire import Onlooker

_DEPLOY_S: Final = 120.0
JUDGED: Final = "judged.jsonl"


async def live(fleet: Fleet[Stage]) -> None:
    """From the first process to the last."""
    story = fleet.stage.story
    seen = Onlooker(plan.FLEET)
    async with fleet.running(), looking_on(fleet, seen):
        watched = await _start_observer(fleet)
        await fleet.learn(lambda: _over(fleet))
        fleet.tell_chaos(story)
        await fleet.wait("every device to run its own model", lambda: _deployed(fleet, seen), _DEPLOY_S)
        _say_bundles(fleet, seen)
        await observing.listen(fleet, watched, seen)
        telling.devices(story, fleet)
        history = await beside.history(fleet)
        telling.history(story, history)
        telling.wire(story, fleet.stage.task, history, seen)
        await fleet.stop_agents()
        telling.bundles(story, fleet.stage, seen)
        telling.judged(story, await _judged(fleet))
    story.missed = seen.missed


async def _start_observer(fleet: Fleet[Stage]) -> Child:
    """Before there is a model: the coordinator exports the route of every device that it has heard of."""
    name, place = cast.OBSERVED.name, fleet.place
    argv = place.command("agent", "run", "--config", str(fleet.layout.config(name)))
    child = await fleet.keep(Child(name, argv, fleet.layout.log(name), ONE_THREAD))
    fleet.screen.say(f"{name} observes in {place.how}")
    return child


def _over(fleet: Fleet[Stage]) -> bool:
    """Whether the rounds are; on the way there, the later sensors are plugged in."""
    _plug_in(fleet)
    now = fleet.view.round
    return now is not None and now.phase == "done" and now.version == fleet.options.rounds


def _plug_in(fleet: Fleet[Stage]) -> None:
    """Plug the later sensors in when a device's update of that round, or a later one, is accepted."""
    story, wanted = fleet.stage.story, cast.plug_round(fleet.options.rounds)
    for watch in cast.DEVICES:
        file, got = cast.plug(fleet.layout, watch.name), fleet.view.receipts
        after = min(
            (number for number in got if number >= wanted and watch.name in got[number]), default=None
        )
        if not watch.later or file.exists() or after is None:
            continue
        file.touch()
        story.plugged_after = after
        sensors = " and ".join(watch.later)
        fleet.screen.say(
            f"the {sensors} of {watch.name} is plugged in, after round {after}; nothing restarts"
        )


def _deployed(fleet: Fleet[Stage], seen: Onlooker) -> bool:
    """Whether every device runs the bundle of the last version that it was pointed to."""
    for name in (*fleet.stage.people, cast.OBSERVED.name):
        pointer, device = seen.pointers.get(name), fleet.view.devices.get(name)
        if pointer is None or device is None:
            return False
        if pointer.version != fleet.options.rounds or device.model != pointer.bundle.digest:
            return False
    return True


def _say_bundles(fleet: Fleet[Stage], seen: Onlooker) -> None:
    different = {pointer.bundle.digest: pointer.bundle.size for pointer in seen.pointers.values()}
    sizes = ", ".join(str(size) for size in sorted(different.values()))
    fleet.screen.say(
        f"version {fleet.options.rounds} is exported by route: {len(different)} ONNX bundles of {sizes} "
        "bytes; every device runs its own"
    )


async def _judged(fleet: Fleet[Stage]) -> list[dict[str, Any]]:
    """Scores of every bundle and of every device by itself, from a child process."""
    story, layout = fleet.stage.story, fleet.layout
    out = layout.root / JUDGED
    job = {
        "out": str(out),
        "task": fleet.stage.task.model_dump(mode="json"),
        "unseen": str(layout.unseen),
        "seed": fleet.options.seed,
        "max_windows": cast.MAX_WINDOWS,
        "bundles": {
            device.name: str(telling.bundle_folder(layout, device.name, device.bundle.digest))
            for device in story.devices
            if device.bundle is not None
        },
        "alone": {
            device.name: {
                "modalities": device.moves[-1].modalities,
                "targets": device.moves[-1].targets,
                "store": str(layout.state(device.name) / "store"),
            }
            for device in story.trained
            if device.moves
        },
    }
    child = await fleet.start_beside("judging", "lichen.demo.plans.disentafl.judging", job)
    await beside.finish(fleet, child, "the bundles and each device alone to be judged")
    fleet.screen.say("every bundle is judged on the unseen people, and what each device reaches by itself")
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in out.read_text().splitlines()]
    return []
