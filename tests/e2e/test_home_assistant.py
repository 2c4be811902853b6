"""Home Assistant itself, where one is installed: its schema judges as ours does, and it shows our sensors.

It is no dependency of ours, and wants an environment of its own: ``python3.11 -m venv ha``, ``ha/bin/pip
install homeassistant==2024.3.3 paho-mqtt==1.6.1`` (the last release for Python 3.11, and what its MQTT
integration asks for), then ``LICHEN_HOME_ASSISTANT=ha/bin/python pytest tests/e2e/test_home_assistant*.py``.
Labels through it: ``test_home_assistant_labels.py``.
"""

import asyncio
import json
import subprocess
from typing import Any

from edge_agent.publish.home_assistant import sensors
from edge_agent.publish.service import Publishing, predictions_link
from runtime.clock import SystemClock
from runtime.mqtt.link import Link
from tests.support.network.brokers import BrokerProcess, broker
from tests.support.sensors.home_assistant import wrong
from tests.support.sensors.home_assistant_process import SCRIPT, python, started
from tests.support.sensors.publishing import ALL, line, manifest_of, settings_of

__all__ = ["broker", "python"]


def cases() -> list[tuple[str, dict[str, Any]]]:
    """What we announce, and the same with mistakes that every release since 2024.3 finds."""
    publish = settings_of(expire_after_s=30).infer.mqtt
    assert publish is not None
    right = [
        (topic, json.loads(payload))
        for topic, payload in sensors(manifest_of(*ALL), publish, "home", "barn-1").items()
    ]
    topic, payload = right[0]
    mistakes: list[dict[str, Any]] = [
        {"state_topic": ""},
        {"value_template": "{{ value_json.label"},
        {"json_attributes_template": ["a"]},
        {"device": {"name": "barn"}},
        {"device": {"identifiers": ["a"], "colour": "red"}},
        {"origin": {"sw_version": "1"}},
        {"expire_after": -1},
        {"state_class": "enum"},
        {"device_class": "classes"},
        {"entity_category": "odd"},
        {"availability_topic": "a\0b"},
    ]
    return [*right, *((topic, {**payload, **one}) for one in mistakes), (f"{topic}/more", payload)]


def test_home_assistant_judges_as_our_schema_does(python: str) -> None:
    asked = cases()
    done = subprocess.run(
        [python, SCRIPT, "judge"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told = json.loads(done.stdout)
    ours = [bool(wrong(*pair)) for pair in asked]
    assert [bool(words) for words in told["wrong"]] == ours, told
    assert ours.count(False) == 1 + len(ALL)


async def test_home_assistant_shows_what_is_predicted_and_forgets_what_is_not(
    python: str, broker: BrokerProcess
) -> None:
    settings = settings_of(port=broker.port, home_assistant=True)
    link = predictions_link(settings, Link)
    assert settings.infer.mqtt is not None
    assert link is not None
    made = Publishing(settings, settings.infer.mqtt, link, SystemClock())
    tasks = [asyncio.create_task(run()) for run in made.services().values()]
    home = await started(python, broker.port)
    made.offer([line(1)], manifest_of(*ALL))
    await home.until(lambda found: len(found) == 1 + len(ALL))
    states = {
        "sensor.barn_1_activity": "still",
        "sensor.barn_1_mood": 'said "no"',
        "sensor.barn_1_pulse": "0.125",
        "sensor.barn_1_skin_temperature": "32.5",
        "sensor.barn_1_steps": "2.0",
    }
    await home.until(
        lambda found: {name: one.get("state") for name, one in found.items()} == states,
        lambda: made.offer([line(2)], manifest_of(*ALL)),
    )
    shown = home.entities["sensor.barn_1_activity"]
    assert (shown["confidence"], shown["missing"], shown["version"]) == (0.88, ["acc"], 7)
    assert home.entities["sensor.barn_1_skin_temperature"]["unit_of_measurement"] == "°C"
    made.offer([line(3, targets=False)], manifest_of())
    await home.until(lambda found: sum("gone" in one for one in found.values()) == len(ALL))
    await home.until(
        lambda found: found["sensor.barn_1_activity"].get("state") == "walking",
        lambda: made.offer([line(3, targets=False)], manifest_of()),
    )
    await made.send_offline()
    await home.until(lambda found: found["sensor.barn_1_activity"].get("state") == "unavailable")
    said = await home.end()
    assert [one[:3] for one in said["devices"]] == [["barn-1", "lichen", "activity"]]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
