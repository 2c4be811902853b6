"""Run by the interpreter of an installed Home Assistant, not by ours (``tests/e2e/test_home_assistant.py``).

``judge``: reads pairs of discovery topic and payload, writes the MQTT integration's errors for each. ``live
PORT``: runs the core with its MQTT integration against a broker on this machine, without web server, until
the standard input ends, and writes a line for each change of an entity. Each line of the input is a call of a
service: its domain, its name and its data.
"""

import asyncio
import json
import queue
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import voluptuous
from homeassistant import bootstrap, config_entries, core, loader
from homeassistant.components.mqtt import button, select, sensor
from homeassistant.components.mqtt.discovery import TOPIC_MATCHER
from homeassistant.const import __version__
from homeassistant.helpers import device_registry

PREFIX = "homeassistant/"
SCHEMAS = {"button": button, "select": select, "sensor": sensor}


def judge(topic: str, payload: dict[str, Any]) -> str:
    found = TOPIC_MATCHER.fullmatch(topic.removeprefix(PREFIX))
    if found is None:
        return "topic"
    try:
        SCHEMAS[found["component"]].DISCOVERY_SCHEMA(payload)
    except voluptuous.Invalid as error:
        return str(error)
    return ""


async def started(port: int, folder: str) -> core.HomeAssistant:
    hass = core.HomeAssistant(folder)
    hass.config.config_dir = folder
    loader.async_setup(hass)
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    await bootstrap.async_load_base_functionality(hass)
    hass.http = MagicMock()  # it would serve cameras and images
    for part in ("http", "file_upload"):
        hass.config.components.add(part)
    await hass.async_start()
    entry = config_entries.ConfigEntry(
        version=1,
        minor_version=1,
        domain="mqtt",
        title="mqtt",
        data={"broker": "127.0.0.1", "port": port, "protocol": "5", "discovery": True},
        source="user",
    )
    await hass.config_entries.async_add(entry)
    say({"version": __version__, "mqtt": entry.state.value})
    return hass


async def live(port: int, folder: str) -> None:
    hass = await started(port, folder)
    calls: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    over = asyncio.get_running_loop().run_in_executor(None, listen, calls)
    seen: dict[str, Any] = {}
    while not over.done():
        await asyncio.sleep(0.05)
        while not calls.empty():
            await hass.services.async_call(*calls.get(), blocking=True)
        entities = hass.states.async_all(tuple(SCHEMAS))
        now = {s.entity_id: {"state": s.state, **s.attributes} for s in entities}
        for name in seen.keys() | now.keys():
            if now.get(name) != seen.get(name):
                say({"id": name, **now.get(name, {"gone": True})})
        seen = now
    devices = device_registry.async_get(hass).devices.values()
    say({"devices": [[one.name, one.manufacturer, one.model, one.sw_version] for one in devices]})
    await hass.async_stop(force=True)


def listen(calls: "queue.SimpleQueue[list[Any]]") -> None:
    for line in sys.stdin:
        calls.put(json.loads(line))


def say(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told, default=str) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "judge":
        say({"version": __version__, "wrong": [judge(*pair) for pair in json.load(sys.stdin)]})
    else:
        with tempfile.TemporaryDirectory() as empty:
            Path(empty, "configuration.yaml").touch()
            asyncio.run(live(int(sys.argv[2]), empty))
