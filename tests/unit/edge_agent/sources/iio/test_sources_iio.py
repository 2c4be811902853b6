"""The real reader of Industrial I/O on a tree that is laid out as the kernel does it."""

import asyncio
import struct
import time
from contextlib import aclosing

import numpy as np
import pytest

from edge_agent.sources.iio.polling import PollTimer
from edge_agent.sources.iio.sysfs import devices, find
from edge_agent.sources.iio.units import conversion
from edge_agent.sources.registry import open_source
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Task
from runtime.clock import SystemClock
from tests.support.sensors.fake_iio import MOTION, SCAN, FakeDevice, mpu6050, table, trigger
from tests.support.services import until

AXES = ["accel_x", "accel_y", "accel_z"]
SCALE = 0.000598550


def source_of(root, known=None, **keys):
    return open_source(table(root, **keys), "source[0]", root, known, SystemClock())


async def rows(source, enough, seconds=10.0):
    """Times and values by modality, once each has so many rows."""
    got = {name: ([], []) for name in source.channels}
    async with asyncio.timeout(seconds), aclosing(source.samples()) as stream:
        async for batch in stream:
            got[batch.modality][0].append(batch.t)
            got[batch.modality][1].append(batch.values)
            if all(sum(map(len, t)) >= enough for t, _ in got.values()):
                break
    return {name: (np.concatenate(t), np.concatenate(v)) for name, (t, v) in got.items()}


async def test_polled_values_are_raw_plus_offset_times_scale_in_si(tmp_path):
    mpu6050(tmp_path)
    modalities = {
        "acc": AXES,
        "gyr": {"channels": ["anglvel_x"], "unit": "deg/s"},
        "chip": ["temp"],
        "warm": {"channels": ["in_temp_raw"], "unit": "K", "factor": 2.0, "offset": -1.0},
    }
    source = source_of(tmp_path, modalities=modalities)
    got = await rows(source, 3)
    np.testing.assert_allclose(got["acc"][1][0], [16384 * SCALE, -8192 * SCALE, 0], rtol=1e-5)
    np.testing.assert_allclose(got["gyr"][1][0], [np.degrees(1.064724)], rtol=1e-5)
    celsius = (-521 + 12420.95) * 2.941176 / 1000
    np.testing.assert_allclose(got["chip"][1][0], [celsius], rtol=1e-5)
    np.testing.assert_allclose(got["warm"][1][0], [2 * (celsius + 273.15) - 1], rtol=1e-5)
    assert "polls mpu6050 (iio:device0) at 50 Hz" in source.state
    assert "has no buffer" in source.state, "and why it is not buffered"


async def test_polling_keeps_its_rate_and_says_how_late_it_was(tmp_path):
    mpu6050(tmp_path)
    source = source_of(tmp_path, mode="poll", rate_hz=100)
    t, _ = (await rows(source, 80))["acc"]
    assert np.median(np.diff(t)) == pytest.approx(0.01, rel=0.2)
    # Beats that were missed before the first or after the last of these rows count, too.
    beats, missed = (t[-1] - t[0]) / 0.01, source.counters.get("missed_beats", 0)
    assert -2 <= beats - (len(t) - 1) <= missed + 2, "what was not missed lies on the beat: no drift"
    assert source.counters["late_ms_max"] >= 0


def test_a_beat_does_not_drift_and_counts_what_was_missed():
    counters: dict[str, float] = {}
    beat = PollTimer(0.1, 10.0, counters)
    for read, now in [(10.003, 10.004), (10.104, 10.105), (10.2, 10.55), (10.55, 10.56)]:
        assert beat.due <= read + 1e-9
        beat.done(read, now)
    assert beat.due == pytest.approx(10.6), "being late once does not move the later ones"
    assert counters["missed_beats"] == 2, "10.3 and 10.4; 10.5 was only late"
    assert counters["late_ms_max"] == pytest.approx(50.0, abs=0.01)


async def test_a_value_that_the_driver_has_computed_is_taken_as_it_is(tmp_path):
    attributes = {
        "in_humidityrelative_input": "45250",
        "in_temp_input": "21500",
        "in_pressure_input": "101.325",
    }
    FakeDevice(tmp_path, 0, "bme280", "1-0076", attributes)
    modalities = {
        "air": ["temp"],
        "wet": ["humidityrelative"],
        "p": {"channels": ["pressure"], "unit": "hPa"},
    }
    source = source_of(tmp_path, device="bme280", modalities=modalities)
    got = await rows(source, 1)
    found = {name: float(values[0, 0]) for name, (_, values) in got.items()}
    assert found == pytest.approx({"air": 21.5, "wet": 45.25, "p": 1013.25})


async def test_scale_and_offset_of_one_channel_go_before_those_of_its_type(tmp_path):
    attributes = {
        "in_voltage0_raw": "100",
        "in_voltage1_raw": "100",
        "in_voltage1_scale": "3.0",
        "in_voltage_scale": "2.0",
        "in_voltage0_offset": "-10",
        "in_voltage0-voltage1_raw": "5",
        "in_voltage-voltage_scale": "7.0",
    }
    FakeDevice(tmp_path, 0, "ads1015", "1-0048", attributes)
    channels = {"channels": ["voltage0", "voltage1", "voltage0-voltage1"], "unit": "mV"}
    source = source_of(tmp_path, device="ads1015", modalities={"v": channels})
    got = await rows(source, 1)
    np.testing.assert_allclose(got["v"][1][0], [180, 300, 35])


async def test_a_mount_matrix_turns_the_chips_axes_to_the_boards(tmp_path):
    device = mpu6050(tmp_path)
    device.set("in_accel_mount_matrix", "0, 1, 0; -1, 0, 0; 0, 0, 1")
    source = source_of(tmp_path, modalities={"acc": AXES, "plain": {"channels": AXES, "mount": False}})
    got = await rows(source, 1)
    np.testing.assert_allclose(got["acc"][1][0], [-8192 * SCALE, -16384 * SCALE, 0], rtol=1e-5)
    np.testing.assert_allclose(got["plain"][1][0], [16384 * SCALE, -8192 * SCALE, 0], rtol=1e-5)


def scans(values, start_ns, step_ns=10_000_000):
    """Scans of a 3-axis accelerometer with stamps, packed by hand."""
    return b"".join(
        struct.pack(">hhh", *row) + b"\xaa\xaa" + struct.pack("<q", start_ns + i * step_ns)
        for i, row in enumerate(values)
    )


async def captured(source, device, blocks, enough):
    """Rows while the driver gives these blocks, each split where it hurts."""

    async def drive():
        await until(lambda: device.get("buffer/enable") == "1")
        for block in blocks:
            device.capture(block[:11])
            await asyncio.sleep(0.02)
            device.capture(block[11:])

    driver = asyncio.create_task(drive())
    got = await rows(source, enough)
    await driver
    return got


async def test_buffered_samples_have_the_kernels_own_times(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    source = source_of(tmp_path)
    start = time.time_ns() - 200_000_000
    values = [(i, -i, 100) for i in range(20)]
    got = await captured(source, device, [scans(values, start)], 20)
    t, found = got["acc"]
    np.testing.assert_allclose(t, start * 1e-9 + np.arange(20) * 0.01, atol=2e-3)
    np.testing.assert_allclose(found, np.array(values) * SCALE, rtol=1e-5)
    assert device.get("sampling_frequency") == "50"
    assert [device.get(f"scan_elements/in_{name}_en") for name in (*AXES, "anglvel_x")] == [
        "1",
        "1",
        "1",
        "0",
    ]
    assert device.get("buffer/length") == "200", "four seconds"
    assert device.get("buffer/watermark") == "5", "a tenth of a second"
    assert device.get("buffer/enable") == "0", "what was switched on is switched off"
    device.close()


async def test_stamps_of_another_clock_are_brought_to_the_wall_clock(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    device.set("current_timestamp_clock", "boottime")
    start, wall = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 100_000_000, time.time() - 0.1
    got = await captured(source_of(tmp_path), device, [scans([(1, 2, 3)] * 10, start)], 10)
    np.testing.assert_allclose(got["acc"][0], wall + np.arange(10) * 0.01, atol=0.5)
    device.close()


async def test_stamps_that_a_driver_leaves_empty_give_the_time_of_reading(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    source = source_of(tmp_path)
    got = await captured(source, device, [scans([(1, 2, 3)] * 10, 0, 0)], 10)
    t = got["acc"][0]
    assert abs(t[-1] - time.time()) < 1
    np.testing.assert_allclose(np.diff(t), 0.02, rtol=0.6, err_msg="spaced by the rate")
    assert source.counters["odd_stamps"] == 10
    device.close()


async def test_a_device_that_gives_other_rates_is_set_to_the_next_above(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    source = source_of(tmp_path, rate_hz=60)
    await captured(source, device, [scans([(0, 0, 0)], time.time_ns())], 1)
    assert device.get("sampling_frequency") == "100"
    device.close()


async def test_trigger_and_range_are_set_before_the_buffer_runs(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    timer = trigger(tmp_path, "timer0", sampling_frequency="100")
    source = source_of(tmp_path, trigger="timer0", write={"in_accel_scale": "0.001"}, mode="buffer")
    got = await captured(source, device, [scans([(1000, 0, 0)], time.time_ns())], 1)
    assert device.get("trigger/current_trigger") == "timer0"
    assert (timer / "sampling_frequency").read_text().strip() == "50"
    assert got["acc"][1][0, 0] == pytest.approx(1.0)
    device.close()


async def test_what_a_boot_script_has_set_up_is_used_and_left_on(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    for name in AXES:
        device.set(f"scan_elements/in_{name}_en", "1")
    device.set("scan_elements/in_timestamp_en", "1")
    device.set("sampling_frequency", "50")
    device.set("buffer/enable", "1")
    await captured(source_of(tmp_path), device, [scans([(1, 2, 3)], time.time_ns())], 1)
    assert device.get("buffer/enable") == "1"
    assert device.get("buffer/length") == "2", "nothing else is written"
    device.close()


async def test_a_buffer_that_cannot_be_used_is_polled_instead_and_said(tmp_path):
    device = mpu6050(tmp_path, buffer=True)
    device.close()
    device.node.unlink()
    source = source_of(tmp_path)
    await rows(source, 2)
    assert "not buffered: " in source.state
    assert "iio:device0" in source.state
    assert device.get("buffer/enable") == "0"
    with pytest.raises(OSError, match="iio:device0"):
        await rows(source_of(tmp_path, mode="buffer"), 1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"modalities": {"acc": ["accel_w"]}}, r"modalities\.acc\.channels: .*no channel 'accel_w'.*'accel_"),
        ({"modalities": {"acc": {"channels": AXES, "unit": "mph"}}}, r"modalities\.acc\.unit: 'mph'.*m/s2"),
        ({"modalities": {"acc": {"chanels": AXES}}}, r"modalities\.acc\.chanels: unknown key; .*'channels'"),
        ({"modalities": {}}, r"modalities: at least 1"),
        ({"rate_hz": 0}, r"rate_hz"),
        ({"write": {"../x": "1"}}, r"write"),
    ],
)
def test_a_wrong_table_names_the_key(tmp_path, keys, words):
    mpu6050(tmp_path)
    with pytest.raises(Misconfigured, match=r"source\[0\].*" + words):
        source_of(tmp_path, **keys)


def test_two_devices_of_one_name_are_told_apart_by_their_place(tmp_path):
    mpu6050(tmp_path)
    mpu6050(tmp_path, 1, "1-0069")
    with pytest.raises(Misconfigured, match=r"several.*mpu6050@1-0068, mpu6050@1-0069"):
        source_of(tmp_path)
    assert find(tmp_path / "sys", "mpu6050@1-0069").id == "iio:device1"
    assert source_of(tmp_path, device="iio:device1").channels == {"acc": 3}
    assert [device.id for device in devices(tmp_path / "sys")] == ["iio:device0", "iio:device1"]


def test_a_device_that_is_not_there_yet_is_a_doubt_and_no_error(tmp_path):
    task = Task(
        name="t",
        labels=("a", "b"),
        modalities=(Modality(name="acc", channels=3, rate_hz=50, unit="g"),),
    )
    source = source_of(tmp_path)
    unit, absent = source.doubts(task)
    assert "'acc' comes in 'm/s2', the task says 'g'" in unit
    assert "no IIO device 'mpu6050'" in absent
    mpu6050(tmp_path)
    in_g = source_of(tmp_path, modalities={"acc": {"channels": AXES, "unit": "g"}})
    assert in_g.doubts(task) == []


def test_units_of_the_kernel():
    assert conversion("magn_x", None)[:2] == ("uT", 100.0)
    assert conversion("humidityrelative", None)[:2] == ("%", 0.001)
    assert conversion("accel_z", "g")[1] * 9.80665 == pytest.approx(1)
    assert conversion("neverheardof0", None) == ("1", 1.0, 0.0)


async def test_numbers_that_stand_together_are_told_apart(tmp_path):
    attributes = {"in_rot_quaternion_raw": "1 2 3 4", "in_rot_scale": "0.5"}
    FakeDevice(tmp_path, 0, "dev_rotation", "hid", attributes)
    channels = ["rot_quaternion[3]", "rot_quaternion[0]"]
    source = source_of(tmp_path, device="dev_rotation", modalities={"turn": channels})
    np.testing.assert_allclose((await rows(source, 1))["turn"][1][0], [2.0, 0.5])


def test_the_tree_names_what_can_be_read_and_how(tmp_path):
    FakeDevice(tmp_path, 0, "x", "b", {**MOTION, **SCAN, "in_pressure_input": "1", "in_count0_en": "1"})
    found = devices(tmp_path / "sys")[0]
    channels = found.channels()
    assert channels["accel_x"] == "raw"
    assert channels["pressure"] == "input"
    assert "timestamp" not in channels
    assert found.frequencies("accel_x") == [10, 20, 50, 100, 200, 500]
    assert found.bus == "b"
