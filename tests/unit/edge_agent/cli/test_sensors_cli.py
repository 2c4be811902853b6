"""``lichen agent sensors list`` and ``test``."""

import json
import os
import threading
import tomllib

import pytest
from typer.testing import CliRunner

from edge_agent.cli import main
from edge_agent.sensors.discovery import discover
from edge_agent.sources.registry import open_source
from runtime.clock import SystemClock
from tests.support.sensors.fake_iio import FakeDevice, mpu6050, trigger
from tests.support.sensors.gstreamer import require_gstreamer

TASK = """
name = "t"
labels = ["a", "b"]
[[modalities]]
name = "acc"
channels = 3
rate_hz = {rate}
unit = "m/s2"
high = {high}
"""


@pytest.fixture
def machine(tmp_path):
    mpu6050(tmp_path, buffer=True).close()
    FakeDevice(tmp_path, 1, "ads1015", "1-0048", {"in_voltage0_raw": "1", "in_voltage0_scale": "2"})
    mpu6050(tmp_path, 2, "1-0069")
    trigger(tmp_path, "mpu6050-dev0")
    by_id = tmp_path / "dev" / "serial" / "by-id"
    by_id.mkdir(parents=True)
    for name in ("ttyUSB0", "ttyACM0", "null"):
        (tmp_path / "dev" / name).touch()
    (by_id / "usb-Anemometer-if00").symlink_to("../../ttyUSB0")
    cameras_and_microphones(tmp_path)
    return tmp_path


def roots(machine):
    """Options of ``list``: where this machine's kernel shows devices."""
    folders = {"--sysfs": machine / "sys", "--dev": machine / "dev", "--proc": machine / "proc"}
    return [word for pair in folders.items() for word in pair]


def cameras_and_microphones(folder):
    """As a Raspberry Pi with a USB webcam (and its metadata), another one, a ribbon camera and decoders."""
    names = {
        0: ("unicam-image", "0"),
        1: ("Webcam: Webcam", "0"),
        2: ("Webcam: Webcam", "1"),
        7: ("Other", "0"),
        10: ("bcm2835-codec-decode", "0"),
        14: ("bcm2835-isp", "0"),
    }
    for number, (name, index) in names.items():
        device = folder / "sys" / "class" / "video4linux" / f"video{number}"
        device.mkdir(parents=True)
        (device / "name").write_text(f"{name}\n")
        (device / "index").write_text(f"{index}\n")
        (folder / "dev" / f"video{number}").touch()
    by_id = folder / "dev" / "v4l" / "by-id"
    by_id.mkdir(parents=True)
    (by_id / "usb-Webcam-video-index0").symlink_to("../../video1")
    (by_id / "usb-Webcam-video-index1").symlink_to("../../video2")
    sound = folder / "proc" / "asound"
    (sound / "card1").mkdir(parents=True)
    (sound / "Webcam").symlink_to("card1")
    (sound / "pcm").write_text(
        "00-00: bcm2835 Headphones : bcm2835 Headphones : playback 8\n"
        "01-00: USB Audio : USB Audio : capture 1\n"
        "02-01: HiFi : HiFi codec : playback 1 : capture 1\n"
    )


def test_a_camera_and_a_microphone_are_measured_in_their_own_terms(tmp_path):
    require_gstreamer()
    config = tmp_path / "agent.toml"
    config.write_text(
        'fleet = "f"\ndevice = "d"\nstate_dir = "s"\ncache_dir = "c"\n'
        '[[source]]\nkind = "camera"\ndevice = "test"\nmodality = "eye"\nwidth = 32\nheight = 32\n'
        '[[source]]\nkind = "microphone"\ndevice = "test"\nmodality = "ear"\n'
    )
    done = run("test", "--config", config, "--seconds", "2", "--format", "json")
    assert done.exit_code == 0, done.stdout
    eye, ear = (one["modalities"] for one in json.loads(done.stdout)["sources"])
    assert eye["eye"]["size"] == "32 x 32 pixels, colours, at most 5 a second"
    assert 0 < eye["eye"]["brightness"] < 255
    assert len(eye["eye"]["low"]) == 1
    assert -6 < ear["ear"]["level_db"] < ear["ear"]["peak_db"] < 0
    assert ear["ear"]["delivered_hz"] == pytest.approx(16_000, rel=0.01)
    words = run("test", "--config", config, "--seconds", "1").stdout
    assert "32 x 32 pixels, colours" in words
    assert "dB" in words


def run(*words):
    return CliRunner().invoke(main.app, ["sensors", *map(str, words)])


def test_everything_that_the_machine_has_is_listed_with_toml_that_is_taken_as_it_is(machine):
    done = run("list", "--format", "json", *roots(machine))
    assert done.exit_code == 0
    every = json.loads(done.stdout)
    assert [one["device"] for one in every["iio"]] == ["mpu6050@1-0068", "ads1015", "mpu6050@1-0069"]
    first = every["iio"][0]
    assert first["rates_hz"] == [10, 20, 50, 100, 200, 500]
    assert first["triggers"] == ["mpu6050-dev0"]
    assert {"name": "accel_x", "read": "raw", "unit": "m/s2", "buffer": True} in first["channels"]
    ports = [one["port"].rpartition("/dev/")[2] for one in every["serial"]]
    assert ports == ["serial/by-id/usb-Anemometer-if00", "ttyACM0"], "by the name that stays"
    assert [one["device"].rpartition("/dev/")[2] for one in every["camera"]] == [
        "v4l/by-id/usb-Webcam-video-index0",
        "video7",
        "libcamera",
    ], "each camera once, by the name that stays; no decoder and no metadata"
    assert [(one["name"], one["device"]) for one in every["microphone"]] == [
        ("USB Audio", "plughw:CARD=Webcam,DEV=0"),
        ("HiFi", "plughw:2,1"),
    ]
    media = [*every["camera"], *every["microphone"]]
    for one in [*every["iio"], *every["serial"], *media, every["system"]]:
        (table,) = tomllib.loads(one["toml"])["source"]
        source = open_source(table, "source[0]", machine, None, SystemClock())
        assert source.channels
    accelerometer = tomllib.loads(first["toml"])["source"][0]["modalities"]["accelerometer"]
    assert accelerometer == {"channels": ["accel_x", "accel_y", "accel_z"], "unit": "m/s2"}


def test_the_list_for_people_can_be_pasted_as_a_whole(machine):
    done = run("list", *roots(machine))
    assert done.exit_code == 0
    titles = ("IIO", "serial", "cameras", "microphones", "kinds", "this")
    pasted = "\n".join(line for line in done.stdout.split("\n") if not line.startswith(titles))
    assert len(tomllib.loads(pasted)["source"]) == 11


def test_a_machine_without_sensors_says_so(tmp_path):
    assert discover(tmp_path, tmp_path)["iio"] == []
    done = run("list", "--sysfs", tmp_path, "--dev", tmp_path, "--proc", tmp_path)
    assert "IIO devices: none" in done.stdout
    assert "serial ports: none" in done.stdout
    assert "cameras: none" in done.stdout
    assert "microphones: none" in done.stdout


def config(folder, *sources, rate=50, high=40):
    (folder / "task.toml").write_text(TASK.format(rate=rate, high=high))
    text = 'fleet = "f"\ndevice = "d"\nstate_dir = "state"\ntask_file = "task.toml"\n'
    (folder / "agent.toml").write_text(text + "\n".join(sources))
    return folder / "agent.toml"


def iio(folder, **keys):
    told = {"device": "mpu6050", "rate_hz": 50, "mode": "poll", "sysfs": str(folder / "sys"), **keys}
    lines = ["[[source]]", 'kind = "iio"', *(f"{key} = {json.dumps(value)}" for key, value in told.items())]
    return "\n".join([*lines, "[source.modalities]", 'acc = ["accel_x", "accel_y", "accel_z"]', ""])


def serial(slave):
    keys = f'kind = "serial"\nport = "{os.ttyname(slave)}"\nbaud = 115200'
    return f"[[source]]\n{keys}\n[source.modalities]\nacc = {{ columns = [0, 1, 2] }}\n"


def listened(path, seconds):
    done = run("test", "--config", path, "--seconds", seconds, "--format", "json")
    return done.exit_code, json.loads(done.stdout)


def test_a_sensor_that_fits_is_measured(tmp_path):
    mpu6050(tmp_path)
    status, told = listened(config(tmp_path, iio(tmp_path)), 1.2)
    assert status == 0, told
    (one,) = told["sources"]
    acc = one["modalities"]["acc"]
    assert acc["rate_hz"] == pytest.approx(50, rel=0.1)
    assert acc["samples"] > 5
    assert acc["low"] == acc["high"]
    assert acc["low"][0] == pytest.approx(9.8066, rel=1e-3)
    assert (one["failed"], one["misfits"], told["task"]) == ([], [], "t")
    printed = run("test", "--config", tmp_path / "agent.toml", "--seconds", 0.5)
    assert printed.exit_code == 0
    assert "all sources deliver; all fits task 't'" in printed.stdout
    assert "jitter" in printed.stdout


def test_what_does_not_fit_the_task_is_65(tmp_path):
    mpu6050(tmp_path)
    status, told = listened(config(tmp_path, iio(tmp_path), rate=200, high=5), 0.8)
    assert status == 65
    rate, high = told["sources"][0]["misfits"]
    assert "the task's rate_hz is 200" in rate
    assert "above the task's high 5" in high


def test_a_silent_source_is_69_and_says_what_it_waits_for(tmp_path):
    master, slave = os.openpty()
    port = serial(slave)
    status, told = listened(config(tmp_path, port), 0.5)
    assert status == 69
    assert "nothing came in 0.5 s (" in told["sources"][0]["failed"][0]
    os.close(master)
    os.close(slave)
    status, told = listened(config(tmp_path, iio(tmp_path)), 0.3)
    assert status == 69
    assert "no IIO device 'mpu6050'" in told["sources"][0]["failed"][0]


def test_bad_lines_are_shown_beside_the_good_ones(tmp_path):
    master, slave = os.openpty()
    os.set_blocking(master, False)
    stop = threading.Event()

    def speak():
        while not stop.wait(0.02):
            try:
                os.write(master, b"1,2,3\nbroken\n")
            except BlockingIOError:
                continue

    thread = threading.Thread(target=speak)
    thread.start()
    port = serial(slave)
    status, told = listened(config(tmp_path, port), 1.0)
    stop.set()
    thread.join()
    assert status == 0, told
    assert told["sources"][0]["told"]["bad_lines"] > 5
    assert "last bad line: no column 1 in 1" in told["sources"][0]["told"]["state"]
    os.close(master)
    os.close(slave)


def test_a_wrong_table_is_78_and_the_others_are_tried_all_the_same(tmp_path):
    mpu6050(tmp_path)
    wrong = '[[source]]\nkind = "serail"\n'
    status, told = listened(config(tmp_path, wrong, iio(tmp_path)), 0.5)
    assert status == 78
    assert "source[0].kind: 'serail'" in told["broken"][0]
    assert "did you mean 'serial'" in told["broken"][0]
    assert told["sources"][0]["modalities"]["acc"]["samples"] > 5
    assert listened(tmp_path / "gone.toml", 0.5)[0] == 78
