"""The course of the routed demo: learn, plug a sensor in, learn on, run each device's own model, compare."""

from typing import Any, Final

from lichen.demo import asking, beside, plan
from lichen.demo.fleet import Fleet
from lichen.demo.kind import Stage
from lichen.demo.looking_on import looking_on
from lichen.demo.plans.disentafl import cast, observing, telling
from lichen.demo.plans.disentafl.story import RoutedStory
from lichen.demo.wire import Onlooker

_DEPLOY_S: Final = 120.0


async def live(fleet: Fleet[Stage[RoutedStory]]) -> None:
    """From the first process to the last."""
    story = fleet.stage.story
    seen = Onlooker(plan.FLEET)
    async with fleet.running(), looking_on(fleet, seen):
        # Before there is a model: the coordinator exports the route of every device that it has heard of.
        watched = await fleet.start_observer(cast.OBSERVED.name)
        fleet.screen.say(f"{watched.name} observes in {fleet.place.how}")
        await fleet.learn(lambda: _over(fleet))
        fleet.tell_chaos(story)
        await fleet.wait("every device to run its own model", lambda: _deployed(fleet, seen), _DEPLOY_S)
        _say_bundles(fleet, seen)
        await observing.listen(fleet, watched, seen)
        telling.devices(story, fleet)
        history = await asking.history(fleet)
        story.take(history)
        telling.wire(story, fleet.stage.task, history, seen)
        await fleet.stop_agents()
        telling.bundles(story, fleet.stage, seen)
        telling.judged(story, await _judged(fleet))
    story.missed = seen.missed


def _over(fleet: Fleet[Stage[RoutedStory]]) -> bool:
    """Whether the rounds are; on the way there, the later sensors are plugged in."""
    _plug_in(fleet)
    return fleet.learned()


def _plug_in(fleet: Fleet[Stage[RoutedStory]]) -> None:
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


def _deployed(fleet: Fleet[Stage[RoutedStory]], seen: Onlooker) -> bool:
    """Whether every device runs the bundle of the last version that it was pointed to."""
    for name in (*fleet.stage.people, cast.OBSERVED.name):
        pointer, device = seen.pointers.get(name), fleet.view.devices.get(name)
        if pointer is None or device is None:
            return False
        if pointer.version != fleet.options.rounds or device.model != pointer.bundle.digest:
            return False
    return True


def _say_bundles(fleet: Fleet[Stage[RoutedStory]], seen: Onlooker) -> None:
    different = {pointer.bundle.digest: pointer.bundle.size for pointer in seen.pointers.values()}
    sizes = ", ".join(str(size) for size in sorted(different.values()))
    fleet.screen.say(
        f"version {fleet.options.rounds} is exported by route: {len(different)} ONNX bundles of {sizes} "
        "bytes; every device runs its own"
    )


async def _judged(fleet: Fleet[Stage[RoutedStory]]) -> list[dict[str, Any]]:
    """Scores of every bundle and of every device by itself."""
    story, layout = fleet.stage.story, fleet.layout
    job = {
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
    what = "the bundles and each device alone to be judged"
    found = await beside.run(fleet, "judged", "lichen.demo.plans.disentafl.judging", job, what)
    fleet.screen.say("every bundle is judged on the unseen people, and what each device reaches by itself")
    return found
