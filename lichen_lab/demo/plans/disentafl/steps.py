"""Steps of the routed demo: train, plug a sensor in, train on, run each device's own model, compare."""

from typing import Any, Final

from lichen_lab.demo.core import lichen_commands, side_jobs
from lichen_lab.demo.core.fleet import DemoFleet
from lichen_lab.demo.core.scenario import FLEET, PreparedDemo
from lichen_lab.demo.core.traffic import TrafficCounter
from lichen_lab.demo.plans.disentafl import collect_results, devices
from lichen_lab.demo.plans.disentafl.results import DisentaflResults

_DEPLOY_S: Final = 120.0


async def live(fleet: DemoFleet[PreparedDemo[DisentaflResults]]) -> None:
    """Run the demo, and fill in its results."""
    results = fleet.stage.results
    traffic = TrafficCounter(FLEET)
    async with fleet.running(), fleet.onlooking(traffic):
        # Started before there is a model: the coordinator exports the routes of all devices it knows.
        watched = await fleet.start_observer(devices.OBSERVED.name)
        fleet.screen.say(f"{watched.name} observes in {fleet.place.how}")
        await fleet.learn(lambda: _over(fleet))
        fleet.record_chaos(results)
        await fleet.wait("every device to run its own model", lambda: _deployed(fleet, traffic), _DEPLOY_S)
        _say_bundles(fleet, traffic)
        await collect_results.listen(fleet, watched, traffic)
        collect_results.take_devices(results, fleet)
        history = await lichen_commands.history(fleet)
        results.take(history)
        collect_results.take_traffic(results, fleet.stage.task, history, traffic)
        await fleet.stop_agents()
        collect_results.take_bundles(results, fleet.stage, traffic)
        collect_results.take_scores(results, await _judged(fleet))
    results.missed = traffic.missed


def _over(fleet: DemoFleet[PreparedDemo[DisentaflResults]]) -> bool:
    """Whether the rounds are over; plugs the later sensors in on the way."""
    _plug_in(fleet)
    return fleet.learned()


def _plug_in(fleet: DemoFleet[PreparedDemo[DisentaflResults]]) -> None:
    """Plug the later sensors in when a device's update of that round, or a later one, is accepted."""
    results, wanted = fleet.stage.results, devices.plug_round(fleet.options.rounds)
    for watch in devices.DEVICES:
        file, got = devices.plug(fleet.layout, watch.name), fleet.view.receipts
        after = min(
            (number for number in got if number >= wanted and watch.name in got[number]), default=None
        )
        if not watch.later or file.exists() or after is None:
            continue
        file.touch()
        results.plugged_after = after
        sensors = " and ".join(watch.later)
        fleet.screen.say(
            f"the {sensors} of {watch.name} is plugged in, after round {after}; nothing restarts"
        )


def _deployed(fleet: DemoFleet[PreparedDemo[DisentaflResults]], traffic: TrafficCounter) -> bool:
    """Whether every device runs its bundle of the last version."""
    for name in (*fleet.stage.people, devices.OBSERVED.name):
        pointer, device = traffic.pointers.get(name), fleet.view.devices.get(name)
        if pointer is None or device is None:
            return False
        if pointer.version != fleet.options.rounds or device.model != pointer.bundle.digest:
            return False
    return True


def _say_bundles(fleet: DemoFleet[PreparedDemo[DisentaflResults]], traffic: TrafficCounter) -> None:
    different = {pointer.bundle.digest: pointer.bundle.size for pointer in traffic.pointers.values()}
    sizes = ", ".join(str(size) for size in sorted(different.values()))
    fleet.screen.say(
        f"version {fleet.options.rounds} is exported by route: {len(different)} ONNX bundles of {sizes} "
        "bytes; every device runs its own"
    )


async def _judged(fleet: DemoFleet[PreparedDemo[DisentaflResults]]) -> list[dict[str, Any]]:
    """Scores of every bundle and of every device by itself."""
    results, layout = fleet.stage.results, fleet.layout
    bundles = {
        device.name: str(collect_results.bundle_folder(layout, device.name, device.bundle.digest))
        for device in results.devices
        if device.bundle is not None
    }
    alone = {
        device.name: {
            "modalities": device.moves[-1].modalities,
            "targets": device.moves[-1].targets,
            "store": str(layout.state(device.name) / "store"),
        }
        for device in results.trained
        if device.moves
    }
    job = fleet.job(max_windows=devices.MAX_WINDOWS, bundles=bundles, alone=alone)
    what = "the bundles and each device alone to be evaluated"
    found = await side_jobs.run(fleet, "judged", "lichen_lab.demo.plans.disentafl.evaluation", job, what)
    fleet.screen.say("every bundle, and each device alone, is evaluated on the unseen people")
    return found
