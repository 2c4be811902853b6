"""Sensors that vanish, rave, flood, and clocks that are set: the agent goes on, and a gap is a mask."""

import asyncio
import os
import struct
import time
from contextlib import aclosing, suppress

import numpy as np
import pytest

from edge_agent.sources import LabelBatch, SampleBatch
from edge_agent.sources.mqtt import source as mqtt_module
from edge_agent.sources.registry import open_source
from models.data.streams.windows import Windower
from runtime.clock import SystemClock
from tests.support.agent.collecting import TASK, collecting
from tests.support.sensors.fake_iio import FakeDevice, mpu6050, table
from tests.support.sensors.source_cases import tell
from tests.support.services import beside, until


class SetClock(SystemClock):
    """The wall clock can be set."""

    def __init__(self):
        self.set_by = 0.0

    def wall(self):
        return super().wall() + self.set_by


async def test_an_iio_device_that_is_pulled_out_is_a_mask_and_comes_back_and_the_other_goes_on(tmp_path):
    motion = mpu6050(tmp_path)
    FakeDevice(tmp_path, 1, "bme280", "1-0076", {"in_temp_input": "21500"})
    air = table(tmp_path, device="bme280", rate_hz=20, modalities={"air": ["temp"]})
    async with collecting(tmp_path, table(tmp_path), air) as (collector, seen):

        def newest():
            return seen[-1].windows.present_BM[-1].tolist() if seen else None

        await until(lambda: newest() == [True, True])
        motion.unplug()
        await until(lambda: newest() == [False, True])
        assert collector.restarts == {"iio mpu6050": 1}
        await asyncio.sleep(1.2)
        assert collector.restarts == {"iio mpu6050": 1}, "it is waited for, not tried again and again"
        assert "no IIO device 'mpu6050'" in collector.sources[0].state
        motion.plug()
        await until(lambda: newest() == [True, True])


async def test_a_buffer_whose_device_goes_ends_with_an_error_and_can_be_read_again(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    source = open_source(table(tmp_path, mode="buffer"), "source[0]", tmp_path, None, SystemClock())

    async def drive():
        await until(lambda: device.get("buffer/enable") == "1")
        device.capture(struct.pack(">hhhxx", 1, 2, 3) + struct.pack("<q", time.time_ns()))

    for turn in range(2):
        driver = asyncio.create_task(drive())
        async with asyncio.timeout(10), aclosing(source.samples()) as stream:
            batch = await anext(stream)
            assert len(batch.t) == 1
            await driver
            device.unplug()
            with pytest.raises(OSError, match="gone"):
                await anext(stream)
        if turn == 0:
            device.plug()


class Sensor:
    """A serial sensor that can be pulled out and put in again, under a name that stays."""

    def __init__(self, folder):
        self.port = folder / "by-id-anemometer"
        self.put_in()

    def put_in(self):
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self.port.symlink_to(os.ttyname(self.slave))

    def pull_out(self):
        self.port.unlink()
        os.close(self.slave)
        os.close(self.master)

    def say(self, data):
        with suppress(BlockingIOError):
            os.write(self.master, data)


def serial_source(sensor, folder, clock=None, **keys):
    told = {
        "kind": "serial",
        "port": str(sensor.port),
        "baud": 115200,
        "modalities": {"air": {"columns": [0]}},
    }
    return open_source({**told, **keys}, "source[0]", folder, None, clock or SystemClock())


async def test_a_serial_port_that_is_pulled_out_fails_and_is_waited_for(tmp_path):
    sensor = Sensor(tmp_path)
    source = serial_source(sensor, tmp_path)
    async with asyncio.timeout(10), aclosing(source.samples()) as stream:
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: "reads" in source.state)
        sensor.say(b"x\n1\n")
        assert (await first).values.tolist() == [[1]]
        sensor.pull_out()
        with pytest.raises(OSError, match=r"gone|Input/output"):
            await anext(stream)
    async with asyncio.timeout(10), aclosing(source.samples()) as stream:
        again = asyncio.ensure_future(anext(stream))
        await until(lambda: "waits for" in source.state)
        sensor.put_in()
        await until(lambda: "reads" in source.state)
        sensor.say(b"x\n2\n")
        assert (await again).values.tolist() == [[2]]
    sensor.pull_out()


async def good(stream):
    """Until the sensor's own value comes: a line of garbage may be a number by chance."""
    async for batch in stream:
        if 77.5 in batch.values:
            return


async def test_garbage_on_the_wire_is_bounded_and_counted_and_good_lines_are_found_again(tmp_path):
    sensor, rng = Sensor(tmp_path), np.random.default_rng(1)
    source = serial_source(sensor, tmp_path, max_line_bytes=64)
    async with asyncio.timeout(20), aclosing(source.samples()) as stream:
        got = asyncio.ensure_future(good(stream))
        await until(lambda: "reads" in source.state)
        for _ in range(100):
            sensor.say(rng.integers(0, 256, 1000, np.uint8).tobytes())
            await asyncio.sleep(0.002)
        while not got.done():
            sensor.say(b"\n77.5\n")
            await asyncio.sleep(0.05)
    assert source.counters["bad_lines"] > 10
    assert source.counters["too_long_lines"] > 10
    assert len(source.state) < 300
    sensor.pull_out()


async def test_a_second_reader_of_a_port_is_refused_in_words(tmp_path):
    sensor = Sensor(tmp_path)
    first = serial_source(sensor, tmp_path)
    second = serial_source(sensor, tmp_path)
    async with aclosing(first.samples()) as one, aclosing(second.samples()) as two, beside(anext(one)):
        await until(lambda: "reads" in first.state)
        with pytest.raises(OSError, match=r"another process reads it|busy"):
            await anext(two)
    sensor.pull_out()


async def test_a_wall_clock_that_is_set_back_begins_a_new_epoch_and_windows_go_on(tmp_path):
    mpu6050(tmp_path)
    clock = SetClock()
    source = open_source(table(tmp_path, mode="poll"), "source[0]", tmp_path, None, clock)
    windower, starts = Windower(TASK, ("acc",), lateness_s=0.3), []
    async with asyncio.timeout(20), aclosing(source.samples()) as stream:
        async for batch in stream:
            windower.feed(batch, clock.now())
            while (windows := windower.poll(clock.now())) is not None:
                starts += windows.start_B.tolist()
            if len(starts) >= 2 and clock.set_by == 0:
                clock.set_by = -3600.0
            elif clock.set_by and starts[-1] < time.time() - 3000:
                break
    assert windower.counters.clock_steps == 1
    assert np.isfinite(starts).all()


async def test_a_broker_that_restarts_ends_labels_and_values_come_again(tmp_path, broker):
    told = {
        "kind": "mqtt",
        "port": broker.port,
        "backoff_max_s": 0.2,
        "modalities": {"air": {"channels": [{"topic": "room"}]}},
        "labels": [{"topic": "label"}],
    }
    source = open_source(told, "source[0]", tmp_path, None, SystemClock())
    values, labels = [], []

    async def listen():
        async with aclosing(source.samples()) as stream:
            async for batch in stream:
                if isinstance(batch, LabelBatch):
                    labels.append(float(batch.label[0]))
                else:
                    values.append(float(batch.values[0, 0]))

    async with beside(listen()):
        await until(lambda: "connected to" in source.state)
        await asyncio.to_thread(tell, broker.port, "label", "1")
        await asyncio.to_thread(tell, broker.port, "room", "1")
        await until(lambda: labels == [1.0] and values == [1.0])
        broker.kill()
        await until(lambda: len(labels) == 2)
        assert np.isnan(labels[1])
        broker.start()
        await until(lambda: "connected to" in source.state)
        await asyncio.to_thread(tell, broker.port, "room", "2")
        await until(lambda: values == [1.0, 2.0])
        assert source.counters["reconnects"] == 1


def test_a_flood_of_messages_drops_the_oldest_and_counts_them(tmp_path, monkeypatch):
    monkeypatch.setattr(mqtt_module, "MAX_BATCHES", 10)
    told = {"kind": "mqtt", "modalities": {"air": {"channels": [{"topic": "room"}]}}}
    source = open_source(told, "source[0]", tmp_path, None, SystemClock())
    for i in range(25):
        source._put(iter([SampleBatch("air", np.array([float(i)]), np.zeros((1, 1), np.float32))]))
    assert [batch.t[0] for batch in source._batches] == list(range(15, 25))
    assert source.counters == {"dropped_samples": 15}
