import asyncio
from contextlib import AsyncExitStack

from coordinator.app import run
from coordinator.status.history import read
from tests.support.coordinator.fake import FakeDevice, TinyJobs, TinyServer, settings_for, tiny_task
from tests.support.network.brokers import BrokerProcess, broker, mosquitto  # noqa: F401 - fixtures


async def run_fleet(tmp_path, port, task, jobs=None, devices=(), **settings):
    chosen = settings_for(tmp_path, port, exit_when_done=True, **settings)
    async with AsyncExitStack() as stack, asyncio.timeout(40):
        running = asyncio.create_task(run(chosen, task, TinyServer(), jobs=jobs or TinyJobs()))
        for device in devices:
            await stack.enter_async_context(device)
        return await running


async def test_a_fleet_finishes_all_rounds_and_the_model_is_announced(tmp_path, broker) -> None:  # noqa: F811
    devices = [FakeDevice(broker.port, f"d{i}", value=float(i)) for i in range(1, 4)]
    jobs = TinyJobs()
    (tmp_path / "w.npz").touch()
    evaluation = {"data": tmp_path / "w.npz"}
    task = tiny_task(count=2, min_devices=3)
    status = await run_fleet(tmp_path, broker.port, task, jobs, devices, evaluation=evaluation)
    assert status == 0
    found = read(tmp_path / "coordinator")
    assert found["phase"] == "done"
    assert [v["metrics"]["accuracy"] for v in found["versions"]] == [0.0, 2.0, 4.0]
    assert [v["devices"] for v in found["versions"]] == [[], ["d1", "d2", "d3"], ["d1", "d2", "d3"]]
    assert found["confusion"]["version"] == 2
    assert found["exports"][0]["version"] == 2
    assert jobs.done == ["initial", "evaluate", "evaluate", "evaluate", "export", "close"]
    assert devices[0].pointers[-1].version == 2
    assert devices[0].rounds[-1].phase == "done"
    assert devices[0].rounds[-1].bytes_up > 0
    assert devices[0].tasks[0].read() == task
    assert {r.status for d in devices for r in d.receipts} == {"accepted"}
    assert found["rounds"][0]["updates"][0]["quality"] == {"acc": 0.5}
    assert found["rounds"][0]["bytes_up"] > 0


async def test_a_device_that_was_away_when_a_round_opened_comes_back_and_contributes(
    tmp_path,
    mosquitto,  # noqa: F811
) -> None:
    port = mosquitto.port
    settings = settings_for(tmp_path, port, exit_when_done=True, away_grace_s=0.3)
    task = tiny_task(count=1, min_devices=2)
    async with AsyncExitStack() as stack, asyncio.timeout(40):
        running = asyncio.create_task(run(settings, task, TinyServer(), jobs=TinyJobs()))
        async with FakeDevice(port, "late") as away:
            await away.wait_for(lambda: away.rounds and away.rounds[-1].phase == "waiting_for_devices")
            await away.hello("offline")
        here = await stack.enter_async_context(FakeDevice(port, "here"))
        async with FakeDevice(port, "mute", mute=True) as mute:
            await mute.wait_for(lambda: mute.offers)
            await here.wait_for(lambda: here.receipts)
            late = await stack.enter_async_context(FakeDevice(port, "late"))
            await late.wait_for(lambda: late.receipts)
            assert [receipt.status for receipt in late.receipts] == ["accepted"]
            assert late.offers[0].asks("anybody"), "one message for the whole fleet"
            await mute.hello("offline")
        assert await running == 0
    found = read(tmp_path / "coordinator")
    assert found["versions"][1]["devices"] == ["here", "late"]
    assert "late" not in found["rounds"][0]["attempts"][0]["selected"]
