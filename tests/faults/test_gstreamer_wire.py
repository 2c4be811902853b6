"""What of camera and microphone passes between agent and broker: counts and states, no frame, no sample."""

import json
import socket
from pathlib import Path

import pytest

from edge_agent.config.agent import read
from edge_agent.status import status_file
from lichen_lab.benchmarks.support.fleet import ProcessFleet
from tests.faults.test_gstreamer_faults import TASK
from tests.support.network.brokers import embedded, mosquitto_path, mosquitto_process
from tests.support.network.tap import HOST, Tap
from tests.support.sensors.gstreamer import PICTURE, TONE, raw_needles, require_gstreamer


def status_of(config: Path) -> dict:
    try:
        return dict(status_file.read(read(config))[1])
    except (OSError, ValueError):
        return {}


@pytest.mark.long
def test_no_byte_of_a_raw_frame_or_of_raw_sound_passes_to_the_broker(tmp_path):
    """The agent collects, stores, and reports states and telemetry to a coordinator, all through a tap."""
    require_gstreamer()
    needles = raw_needles(tmp_path)
    live = {"kind": "gstreamer"}
    sources = [
        live | {"modality": "eye", "media": "image", "pipeline": PICTURE.format("is-live=true")},
        live | {"modality": "ear", "media": "sound", "pipeline": TONE.format("is-live=true")},
    ]
    broker = (mosquitto_process(tmp_path / "broker") if mosquitto_path() else embedded(tmp_path)).start()
    try:
        with Tap(broker.port) as tap, ProcessFleet(TASK, tap.port) as fleet:
            fleet.coordinator(export={"enabled": False})
            more = {"telemetry": {"every_s": 1}, "state_every_s": 0.3, "infer": {"enabled": False}}
            fleet.agent("watcher", Path("none"), speed=1, source=sources, **more)
            config = fleet.files.config("watcher")
            fleet.until(lambda: status_of(config).get("windows", 0) >= 20, 60, "20 windows")
            before = sum(map(len, tap.streams()))
            fleet.until(lambda: sum(map(len, tap.streams())) > before + 2000, 60, "2 kB of reports more")
            passed = tap.streams()
            with socket.create_connection((HOST, tap.port)) as leak:
                leak.sendall(b"leak " + needles[0])
            fleet.until(lambda: found([needles[0]], tap.streams()) == 1, 20, "the tap sees what is sent")
    finally:
        broker.stop()
    assert found([b"watcher"], passed) == 1
    assert found(needles, passed) == 0, json.dumps([len(stream) for stream in passed])


def found(wanted: list[bytes], streams: list[bytes]) -> int:
    """How many of these are in what passed."""
    return sum(any(one in stream for stream in streams) for one in wanted)
