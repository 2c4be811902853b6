"""Whether the coordinator is there: readers of ``b/round`` can tell, however it ended."""

import pytest

from coordinator.status.history import read
from tests.faults.test_coordinator_kill import fleet
from tests.support.coordinator.fake import tiny_task
from tests.support.network.brokers import BrokerProcess, broker  # noqa: F401 - a fixture


@pytest.mark.long
async def test_killed_is_offline_started_is_heard_and_ended_in_order_is_stopped(tmp_path, broker) -> None:  # noqa: F811
    task = tiny_task(count=2, min_devices=2)  # one device: it never ends by itself
    async with fleet(tmp_path, broker.port, task, count=1) as (child, (device,)):

        async def hear(phase: str):
            await device.wait_for(lambda: bool(device.rounds) and device.rounds[-1].phase == phase)
            return device.rounds[-1]

        await child.start()
        assert (await hear("waiting_for_devices")).every_s == 30.0
        await child.kill()
        said = await hear("offline")
        assert (said.task, said.round, said.rounds, said.every_s) == ("tiny", 0, 2, 0.0)
        assert "the coordinator is not connected" in said.waiting_for
        await child.start()
        await hear("waiting_for_devices")
        await child.kill()
        assert (await hear("offline")).round == 1, "its will knows what the journal knew"
        await child.start()
        await hear("waiting_for_devices")
        child.process.terminate()
        assert await child.status() == 0
        said = await hear("stopped")
        assert (said.round, said.every_s) == (1, 0.0)
        assert "was stopped" in said.waiting_for


async def test_a_round_does_not_wait_for_a_device_that_said_goodbye(tmp_path, broker) -> None:  # noqa: F811
    task = tiny_task(count=1, deadline_s=3600.0)
    async with fleet(tmp_path, broker.port, task, away_grace_s=0.5, spread_s=1.0) as (child, devices):
        devices[1].mute = devices[2].mute = True
        await child.start()
        await devices[1].wait_for(lambda: bool(devices[1].offers))
        await devices[2].wait_for(lambda: bool(devices[2].offers))
        await devices[1].hello("stopped")
        await devices[2].hello("offline")
        assert await child.status() == 0, "all rounds are over"
    [attempt] = read(tmp_path / "coordinator")["rounds"][0]["attempts"]
    assert attempt["outcome"] == "away"
    assert sorted(attempt["why"]) == ["d1", "d2", "d3"]
