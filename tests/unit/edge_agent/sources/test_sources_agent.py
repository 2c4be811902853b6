"""Live sensors all the way into the agent: windows with labels by name, and what its status says."""

import asyncio
import os

from tests.support.agent.collecting import collecting
from tests.support.agent.data import write_toy
from tests.support.sensors.fake_iio import mpu6050
from tests.support.sensors.source_cases import beside, tell
from tests.support.services import until
from tests.unit.edge_agent.messaging.test_agent_session import make


async def test_a_serial_sensor_and_labels_by_name_from_a_topic_make_labelled_windows(tmp_path, broker):
    master, slave = os.openpty()
    os.set_blocking(master, False)
    wind = {"kind": "serial", "port": os.ttyname(slave), "modalities": {"air": {"columns": [0]}}}
    labels = {"kind": "mqtt", "port": broker.port, "labels": [{"topic": "room"}]}
    tell(broker.port, "room", "b", retain=True)

    def say() -> None:
        try:
            os.write(master, b"3.5\n")
        except BlockingIOError:
            return

    async with beside(say, 0.05), collecting(tmp_path, wind, labels) as (_, seen):

        def newest() -> int | None:
            return int(seen[-1].windows.y_B[-1]) if seen else None

        await until(lambda: newest() == 1)
        await asyncio.to_thread(tell, broker.port, "room", "a")
        await until(lambda: newest() == 0)
        await asyncio.to_thread(tell, broker.port, "room", "")
        await until(lambda: newest() == -1)
        assert seen[-1].windows.present_BM[-1].tolist() == [False, True]
        assert float(seen[-1].windows.x["air"][-1].max()) == 3.5
    os.close(slave)
    os.close(master)


def test_the_agents_status_has_a_replay_and_a_source_without_a_status_of_its_own(tmp_path):
    write_toy(tmp_path, 30)
    replay = '[[source]]\nkind = "replay"\nfile = "toy.npz"\nstart_s = 12\n'
    system = '[[source]]\nkind = "system"\n[source.modalities]\nload = ["load.1"]\n'
    agent = make(tmp_path, text=f'fleet = "f"\ndevice = "d"\n{replay}{system}')
    assert agent.status()["sources"] == {"replay toy.npz": {"state": "second 12 of 30"}, "system": {}}
    agent.close()


def test_the_agents_status_says_how_each_source_is(tmp_path):
    mpu6050(tmp_path)
    table = f'[[source]]\nkind = "iio"\ndevice = "mpu6050"\nrate_hz = 50\nsysfs = "{tmp_path}/sys"\n'
    text = 'fleet = "f"\ndevice = "d"\n' + table + '[source.modalities]\nacc = ["accel_x"]\n'
    agent = make(tmp_path, text=text)
    agent.sources[0].counters["missed_beats"] = 3
    assert agent.status()["sources"] == {"iio mpu6050": {"state": "not started", "missed_beats": 3.0}}
    agent.close()
