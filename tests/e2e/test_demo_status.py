"""``lichen status`` against a real broker: what is retained is shown; an absent broker is named."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from lichen.commands import status
from protocol.messages import RoundAnnouncement, State, encode
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings
from tests.support.network.brokers import (
    BrokerProcess,
    broker,  # noqa: F401 - the fixture is used by name
    free_port,
    require_mosquitto,
)


def run(port: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "lichen", "status", "f", "--port", str(port), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


async def test_retained_state_is_shown(broker: BrokerProcess) -> None:  # noqa: F811 - pytest's way of naming it
    settings = MqttSettings(port=broker.port)
    link = Link(settings, "writer", filters=[("nothing", 0)])
    running = asyncio.create_task(link.run())
    announced = RoundAnnouncement(
        task="t", round=3, rounds=9, phase="collecting", version=2, waiting_for="usnea's update"
    )
    try:
        async with asyncio.timeout(10):
            await link.wait_connected()
            await link.publish(broadcast_topic("f", Kind.ROUND), encode(announced), retain=True)
            state = encode(State(status="online", device="usnea", windows=7))
            await link.publish(device_topic("f", "usnea", Kind.STATE), state, retain=True)
        view = await status.look(settings, "f", 1.0)
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert view.round == announced
    assert view.devices["usnea"].windows == 7
    done = run(broker.port, "--format", "json")
    assert json.loads(done.stdout)["devices"]["usnea"]["status"] == "online", done.stderr
    assert "waits for: usnea's update" in run(broker.port, "--why").stdout


def test_the_example_broker_starts_where_it_may_write_nothing(tmp_path: Path) -> None:
    program = require_mosquitto()
    port, example = free_port(), Path(__file__).resolve().parents[2] / "examples/mosquitto.conf"
    file = tmp_path / "mosquitto.conf"
    file.write_text(example.read_text().replace("listener 1883", f"listener {port}"))
    # As root it becomes the user mosquitto, who must be able to read this and can write nowhere here.
    started = BrokerProcess([program, "-c", str(file)], port, tmp_path / "log").start()
    try:
        assert "no coordinator has been seen" in run(port).stdout
    finally:
        started.stop()
    assert "rror" not in (tmp_path / "log").read_text()


def test_a_broker_that_is_not_there_is_named() -> None:
    port = free_port()
    done = run(port)
    assert done.returncode == 69
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr
