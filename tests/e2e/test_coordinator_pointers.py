"""Bundles by route over a real broker: each device finds its pointer, also when nobody is there to say it."""

import asyncio
from contextlib import AsyncExitStack

from coordinator.app import run
from coordinator.status.history import read
from tests.support.coordinator.fake import FakeDevice, settings_for, tiny_task
from tests.support.coordinator.routed import PartJobs, Parts
from tests.support.network.brokers import broker  # noqa: F401 - a fixture


async def test_each_device_finds_its_own_pointer_at_the_broker(tmp_path, broker) -> None:  # noqa: F811
    def device(name: str, *sensors: str, session: str = "") -> FakeDevice:
        return FakeDevice(broker.port, name, sensors=sensors, session=session)

    chosen = settings_for(tmp_path, broker.port, exit_when_done=True)
    task = tiny_task(count=1, min_devices=3, devices_per_round=3, selection="bandit")
    jobs = PartJobs()
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        running = asyncio.create_task(run(chosen, task, Parts(), jobs=jobs))
        sensors = {"a1": ("acc",), "a2": ("acc",), "g": ("gyro",)}
        here = [await stack.enter_async_context(device(name, *has)) for name, has in sensors.items()]
        assert await running == 0
        for one in here:
            await one.wait_for(lambda one=one: one.pointers)
        a1, a2, g = (one.pointers[-1].bundle.digest for one in here)
        assert a1 == a2 != g
        assert all(len({p.bundle.digest for p in one.pointers}) == 1 for one in here)
    async with asyncio.timeout(60):  # the coordinator is gone
        async with device("g", "gyro", session="-2") as back:
            await back.wait_for(lambda: back.pointers)
            assert back.pointers[0].bundle.digest == g
    assert len(jobs.exported) == 2
    assert {one["digest"] for one in read(tmp_path / "coordinator")["bundles"]} == {a1, g}
