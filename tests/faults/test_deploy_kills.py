"""A device's rollout is cut at every moment, and the device starts again without a network.

Whatever was cut, it runs a whole model: the committed one, or the one on trial. With the network back it ends
where it would have ended. Power cuts are played by the simulated disk; SIGKILL is one, in real processes.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edge_agent.deployment.bundle_store import read_record
from lichen_lab.simulation.deterministic.machine.disk import PowerCut, SimDisk, memory_folder, start
from lichen_lab.simulation.deterministic.machine.process_life import LIFE, ProcessLife
from protocol.rollout import Trial
from tests.support.coordinator.trial_device import Device, living, put
from tests.support.coordinator.trial_runner import FakeRunner
from tests.support.storage.killing_disk import killed_at

Scene = Callable[[Device], Awaitable[None]]
RULES = Trial(windows=2)


class CutRunner(FakeRunner):
    """Dies before a model is loaded, while it is tried, and when it has answered."""

    async def load(self, folder: Path) -> object:
        _moment("before a load")
        model = await super().load(folder)
        _moment("after a load")
        return model


def _moment(what: str) -> None:
    life = LIFE.get()
    if life is not None:
        life.moment(what)


async def good(device: Device) -> None:
    """Version 2 comes, passes its trial and is committed."""
    device.point(2, serial=5, trial=RULES, own=True)
    await device.runs(2)
    device.runner.answer(0)
    _moment("a window")
    device.runner.answer(1)
    await device.written()


async def bad(device: Device) -> None:
    """Version 2 comes, fails its trial and is rolled back."""
    device.point(2, serial=5, trial=RULES, own=True)
    if device.deployment.record.failed(device.point(2, serial=5, trial=RULES, own=True), 5) is None:
        await device.runs(2)
        device.runner.answer(0)
        _moment("a window")
        device.runner.answer(error="it died")
    await device.written()


async def withdrawn(device: Device) -> None:
    """Version 2 comes and is withdrawn while it is on trial."""
    if read_record(device.folder).serial < 6:
        device.point(2, serial=5, trial=RULES, own=True)
        await device.runs(2)
    device.point(1, serial=6)
    await device.runs(1)
    await device.written()


async def stopped(device: Device) -> None:
    """The agent ends in order while version 2 is on trial."""
    device.point(2, serial=5, trial=RULES, own=True)
    await device.runs(2)
    await device.deployment.executor.stop()


ENDS = {good: 2, bad: 1, withdrawn: 1, stopped: 2}


async def lived(device: Device, scene: Scene) -> None:
    """One life; a cut in any of its tasks ends it."""
    services = [asyncio.create_task(run()) for run in (device.deployment.run, device.deployment.executor.run)]
    doing = asyncio.create_task(scene(device))
    try:
        await asyncio.wait([*services, doing], return_when=asyncio.FIRST_COMPLETED)
        for task in (doing, *services):
            if task.done():
                task.result()
    finally:
        for task in (doing, *services):
            task.cancel()
        await asyncio.gather(doing, *services, return_exceptions=True)


async def prepared(root: Path, shelf: Path) -> None:
    """Version 1 is committed."""
    async with living(lambda: Device(root, shelf)) as device:
        device.point(1, serial=4, trial=RULES)
        await device.runs(1)
        device.runner.answer(0, 1)
        await device.written()
        assert read_record(device.folder).committed is not None


async def comes_up(root: Path, nothing: Path) -> int | None:
    """What a device runs after a start without a network; what it runs is whole and named."""
    async with living(lambda: Device(root, nothing)) as device:
        await asyncio.sleep(0)
        for _ in range(400):
            if device.running is not None and (device.record.trial is None or device.runner.beside):
                break
            await asyncio.sleep(0.005)
        running, record = device.running, device.record
        assert device.runner.model is not None, "a working model"
        assert device.runner.model.digest in {k.digest for k in (record.committed, record.trial) if k}
        assert device.shelf.fetched == []
        return running


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
@pytest.mark.parametrize("scene", ENDS, ids=lambda scene: scene.__name__)
async def test_cut_at_any_moment_a_whole_model_runs_and_it_ends_where_it_should(
    scene: Scene, *, power: bool, tmp_path: Path
) -> None:
    shelf = tmp_path / "shelf"
    for version in (1, 2):
        put(shelf, version)
    with memory_folder() as name:
        memory = Path(name)
        await prepared(memory / "begin", shelf)
        found: set[int | None] = set()
        for at in itertools.count(1):
            life = ProcessLife("d1", crash_at=at, power=power)
            here, after = memory / f"{at}-a", memory / f"{at}-b"
            SimDisk(memory / "begin").freeze(here, power=False)
            disk = SimDisk(here, at, life=life)
            life.on_end.append(lambda _, d=disk, a=after: d.freeze(a, power=power))
            device = Device(here, shelf, runner=CutRunner())
            with contextlib.suppress(PowerCut, asyncio.CancelledError):
                await start(life, disk, lambda d=device: lived(d, scene))
            if not life.dead:
                break
            found.add(await comes_up(after, memory / "no network"))
            async with living(lambda root=after: Device(root, shelf)) as last:
                await asyncio.wait_for(scene(last), 20)
                assert last.running == ENDS[scene], life.died_of
                assert read_record(last.folder) == last.record
        assert at > 15, "it did die at every step"
        assert found == {1, 2}, "before and after the record named the new one"


@pytest.mark.parametrize(
    "scene", [good, pytest.param(bad, marks=pytest.mark.long)], ids=lambda scene: scene.__name__
)
def test_a_process_killed_at_any_write_leaves_a_whole_model(scene: Scene, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    for version in (1, 2):
        put(shelf, version)
    asyncio.run(prepared(tmp_path / "begin", shelf))
    found: set[int | None] = set()
    for at in itertools.count(1):
        root = tmp_path / f"{at}"
        SimDisk(tmp_path / "begin").freeze(root, power=False)
        if not killed_at(at, lambda root=root: asyncio.run(lived(Device(root, shelf), scene))):
            break
        found.add(asyncio.run(comes_up(root, tmp_path / "no network")))
    assert at > 15
    assert found == {1, 2}
