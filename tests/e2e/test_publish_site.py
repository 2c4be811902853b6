"""Predictions on a site's broker, from a running agent to programs and to what Home Assistant reads."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edge_agent.config.agent import read
from edge_agent.publish.home_assistant import node_of
from edge_agent.publish.service import Publishing, predictions_link
from lichen.client import Prediction, Predictions, predictions
from protocol.messages import ModelPointer, encode
from protocol.topics import Kind, broadcast_topic
from runtime.clock import SystemClock
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings
from tests.e2e.test_agent_e2e import DEVICE, TASK, agent_of, coordinator, write_config
from tests.support.agent.bundle import bundle
from tests.support.agent.fake_coordinator import FLEET
from tests.support.network.brokers import BrokerProcess, broker, broker_v3, embedded, mosquitto_process
from tests.support.sensors.home_assistant import wrong
from tests.support.sensors.publishing import line, manifest_of, settings_of
from tests.support.services import beside, until

__all__ = ["broker", "broker_v3"]
ROOT = Path(__file__).parents[2]
BASE = f"lichen/{DEVICE}"
SENSOR = f"homeassistant/sensor/{node_of(FLEET, DEVICE)}/label/config"


class Ear:
    """What a broker has said of some topics; the newest of each."""

    def __init__(self, broker: BrokerProcess, *topics: str, protocol: str = "5") -> None:
        settings = MqttSettings.model_validate(
            {"port": broker.port, "protocol": protocol, "backoff_min_s": 0.05, "backoff_max_s": 0.2}
        )
        self.link = Link(settings, "ear", filters=[(topic, 1) for topic in topics])
        self.heard: dict[str, bytes] = {}
        self.count: dict[str, int] = {}

    async def listen(self) -> None:
        async for message in self.link.messages():
            self.heard[message.topic] = message.payload
            self.count[message.topic] = self.count.get(message.topic, 0) + 1
            message.ack()


@asynccontextmanager
async def ear(broker: BrokerProcess, *topics: str, protocol: str = "5") -> AsyncIterator[Ear]:
    made = Ear(broker, *topics, protocol=protocol)
    async with beside(made.link.run(), made.listen()):
        async with asyncio.timeout(10):
            await made.link.wait_connected()
        yield made


def with_mqtt(config: Path, port: int, extra: str = "") -> Path:
    text = config.read_text().split("[infer.mqtt]")[0]
    config.write_text(text.replace("[[source]]", f"[infer.mqtt]\nport = {port}\n{extra}\n[[source]]", 1))
    return config


async def following(stream: Predictions, count: int) -> list[Prediction]:
    return [await asyncio.to_thread(next, stream) for _ in range(count)]


@pytest.mark.long
async def test_a_running_agent_tells_its_site_what_it_predicts(tmp_path: Path, broker: BrokerProcess) -> None:
    site = embedded(tmp_path).start()  # not the fleet's
    config = write_config(tmp_path, broker.port)
    plain = config.read_text()
    with_mqtt(config, site.port, "home_assistant = true\nretain = true")
    where = f"mqtt://127.0.0.1:{site.port}/lichen/+"
    async with (
        coordinator(broker) as fake,
        ear(site, f"{BASE}/availability", "homeassistant/#") as site_ear,
    ):
        await fake.announce(TASK)
        pointer = ModelPointer(task=TASK.name, version=4, bundle=fake.put(bundle(TASK, 4)))
        await fake.link.publish(broadcast_topic(FLEET, Kind.FLEET_MODEL), encode(pointer), retain=True)
        heard, count = site_ear.heard, site_ear.count
        with predictions(where, timeout_s=20) as stream:
            async with agent_of(config) as agent:
                found = await following(stream, 5)
                assert {(one.source, one.version) for one in found} == {(BASE, 4)}
                assert {one.label for one in found} <= set(TASK.labels)
                assert heard[f"{BASE}/availability"] == b"online"
                assert wrong(SENSOR, json.loads(heard[SENSOR])) == []
                await until(lambda: agent.status()["predictions_to"]["published"] >= 5)
                before = count[SENSOR]
                await site_ear.link.publish("homeassistant/status", b"online")
                await until(lambda: count[SENSOR] > before)
            await until(lambda: heard[f"{BASE}/availability"] == b"offline")
        written = {
            json.loads(text)["wall"] for text in (tmp_path / "predictions.jsonl").read_text().split("\n")[:-1]
        }
        assert {one.wall for one in found} <= written, "the topic says what the file says"
        async with agent_of(config):  # the broker still has the sensor, and that is well
            await until(lambda: heard[f"{BASE}/availability"] == b"online")
            with predictions(where, timeout_s=20) as stream:
                assert (await following(stream, 1))[0].retained
            assert heard[SENSOR]
        config.write_text(plain)
        with_mqtt(config, site.port)
        async with agent_of(config):
            await until(lambda: heard[SENSOR] == b"")
    site.stop()


async def test_an_agent_that_is_killed_is_offline_on_its_site(tmp_path: Path, broker: BrokerProcess) -> None:
    config = with_mqtt(write_config(tmp_path, broker.port), broker.port, 'topic = "site/{device}"')
    async with ear(broker, f"site/{DEVICE}/availability") as site_ear:
        command = [sys.executable, "-P", "-m", "lichen", "agent", "run", "--config", str(config)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env)
        try:
            await until(lambda: site_ear.heard.get(f"site/{DEVICE}/availability") == b"online", 30)
        finally:
            child.send_signal(signal.SIGKILL)
            await child.wait()
        await until(lambda: site_ear.heard[f"site/{DEVICE}/availability"] == b"offline")


@asynccontextmanager
async def device(port: int, **mqtt: object) -> AsyncIterator[Publishing]:
    settings = settings_of(port=port, **mqtt)
    link = predictions_link(settings, Link)
    assert settings.infer.mqtt is not None
    assert link is not None
    made = Publishing(settings, settings.infer.mqtt, link, SystemClock())
    async with beside(*(run() for run in made.services().values()), forever=True):
        yield made


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_a_broker_that_lost_everything_is_told_everything_again(
    protocol: str, request: pytest.FixtureRequest
) -> None:
    """Neither the agent nor who listens need do anything."""
    site: BrokerProcess = request.getfixturevalue("broker" if protocol == "5" else "broker_v3")
    where = f"mqtt://127.0.0.1:{site.port}/lichen/barn-1"
    config = f"homeassistant/sensor/{node_of('home', 'barn-1')}/label/config"
    with predictions(where, protocol=protocol, timeout_s=30) as stream:  # type: ignore[arg-type]
        async with device(site.port, protocol=protocol, home_assistant=True) as made:
            i = 0
            for _ in range(2):
                while made.published <= i or "listens" not in stream.state:
                    made.offer([line(i)], manifest_of())
                    await asyncio.sleep(0.1)
                i = made.published
                made.offer([line(7)], manifest_of())
                while (await following(stream, 1))[0].t != 9.5:
                    pass
                async with ear(site, config, "lichen/barn-1/availability", protocol=protocol) as site_ear:
                    await until(lambda: len(site_ear.heard) == 2)
                    assert site_ear.heard["lichen/barn-1/availability"] == b"online"
                site.kill()
                await until(lambda: [*made.waits()] and "listens" not in stream.state)
                site.start()


@pytest.mark.mosquitto
async def test_a_broker_with_passwords_lets_in_who_has_one(tmp_path: Path) -> None:
    """Mosquitto; with a password file, and nobody let in without."""
    words = tmp_path / "words"
    words.touch(0o600)
    site = mosquitto_process(tmp_path / "mosquitto", f"password_file {words}", anonymous=False)
    made_words = await asyncio.create_subprocess_exec("mosquitto_passwd", "-b", str(words), "barn", "s3cret")
    assert await made_words.wait() == 0
    site.start()
    (tmp_path / "secret").write_text("s3cret\n")
    where = f"127.0.0.1:{site.port}/lichen/barn-1"
    with (
        predictions(f"mqtt://{where}", timeout_s=20) as stream,
        pytest.raises(PermissionError, match="refuses"),
    ):
        await following(stream, 1)
    with predictions(f"mqtt://barn:s3cret@{where}", timeout_s=20) as stream:
        keys = {"username": "barn", "password_file": str(tmp_path / "secret"), "retain": True}
        async with device(site.port, **keys) as made:
            made.offer([line(3)], manifest_of())
            assert (await following(stream, 1))[0].line == line(3)
    site.stop()


def test_what_is_wrong_with_the_sites_broker_is_said_before_the_agent_runs(tmp_path: Path) -> None:
    config = with_mqtt(write_config(tmp_path, 1883), 1884, 'username = "a"\npassword_file = "none"')
    assert read(config).infer.mqtt is not None
    command = [sys.executable, "-P", "-m", "lichen", "agent", "check", "-c", str(config), "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 78
    assert "[infer.mqtt]" in json.loads(done.stdout)["error"]
    assert str(tmp_path / "none") in json.loads(done.stdout)["error"]
