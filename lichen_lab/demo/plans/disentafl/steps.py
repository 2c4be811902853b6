"""The course of the routed demo: learn, plug a sensor in, learn on, run each device's own model, compare."""

from typing import Any, Final

from lichen_lab.demo.core import lichen_commands, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import FLEET, PreparedDemo
from lichen_lab.demo.core.traffic import Onlooker
from lichen_lab.demo.plans.disentafl import collect_results, devices, observing
from lichen_lab.demo.plans.disentafl.results import RoutedStory

_DEPLOY_S: Final = 120.0


async def live(fleet: DemoFleet[PreparedDemo[RoutedStory]]) -> None:
    """From the first process to the last."""
    story = fleet.stage.story
    seen = Onlooker(FLEET)
    async with fleet.running(), fleet.onlooking(seen):
        # Before there is a model: the coordinator exports the route of every device that it has heard of.
        watched = await fleet.start_observer(devices.OBSERVED.name)
        fleet.screen.say(f"{watched.name} observes in {fleet.place.how}")
        await fleet.learn(lambda: _over(fleet))
        fleet.tell_chaos(story)
        await fleet.wait("every device to run its own model", lambda: _deployed(fleet, seen), _DEPLOY_S)
        _say_bundles(fleet, seen)
        await observing.listen(fleet, watched, seen)
        collect_results.devices(story, fleet)
        history = await lichen_commands.history(fleet)
        story.take(history)
        collect_results.wire(story, fleet.stage.task, history, seen)
        await fleet.stop_agents()
        collect_results.bundles(story, fleet.stage, seen)
        collect_results.judged(story, await _judged(fleet))
    story.missed = seen.missed


def _over(fleet: DemoFleet[PreparedDemo[RoutedStory]]) -> bool:
    """Whether the rounds are; on the way there, the later sensors are plugged in."""
    _plug_in(fleet)
    return fleet.learned()


def _plug_in(fleet: DemoFleet[PreparedDemo[RoutedStory]]) -> None:
    """Plug the later sensors in when a device's update of that round, or a later one, is accepted."""
    story, wanted = fleet.stage.story, devices.plug_round(fleet.options.rounds)
    for watch in devices.DEVICES:
        file, got = devices.plug(fleet.layout, watch.name), fleet.view.receipts
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


def _deployed(fleet: DemoFleet[PreparedDemo[RoutedStory]], seen: Onlooker) -> bool:
    """Whether every device runs the bundle of the last version that it was pointed to."""
    for name in (*fleet.stage.people, devices.OBSERVED.name):
        pointer, device = seen.pointers.get(name), fleet.view.devices.get(name)
        if pointer is None or device is None:
            return False
        if pointer.version != fleet.options.rounds or device.model != pointer.bundle.digest:
            return False
    return True


def _say_bundles(fleet: DemoFleet[PreparedDemo[RoutedStory]], seen: Onlooker) -> None:
    different = {pointer.bundle.digest: pointer.bundle.size for pointer in seen.pointers.values()}
    sizes = ", ".join(str(size) for size in sorted(different.values()))
    fleet.screen.say(
        f"version {fleet.options.rounds} is exported by route: {len(different)} ONNX bundles of {sizes} "
        "bytes; every device runs its own"
    )


async def _judged(fleet: DemoFleet[PreparedDemo[RoutedStory]]) -> list[dict[str, Any]]:
    """Scores of every bundle and of every device by itself."""
    story, layout = fleet.stage.story, fleet.layout
    bundles = {
        device.name: str(collect_results.bundle_folder(layout, device.name, device.bundle.digest))
        for device in story.devices
        if device.bundle is not None
    }
    alone = {
        device.name: {
            "modalities": device.moves[-1].modalities,
            "targets": device.moves[-1].targets,
            "store": str(layout.state(device.name) / "store"),
        }
        for device in story.trained
        if device.moves
    }
    job = fleet.job(max_windows=devices.MAX_WINDOWS, bundles=bundles, alone=alone)
    what = "the bundles and each device alone to be judged"
    found = await side_jobs.run(fleet, "judged", "lichen_lab.demo.plans.disentafl.evaluation", job, what)
    fleet.screen.say("every bundle is judged on the unseen people, and what each device reaches by itself")
    return found
