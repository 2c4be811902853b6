"""What Home Assistant is told: judged by a schema of its releases, and its templates by what they give."""

import json
from typing import Any

import jinja2
import pytest

from edge_agent.publish.home_assistant import filter_of, node_of, sensors
from protocol.bundle import BundleManifest
from tests.support.sensors.home_assistant import wrong
from tests.support.sensors.publishing import ALL, TASK, line, manifest_of, settings_of

ENVIRONMENT = jinja2.Environment(autoescape=False)  # noqa: S701 - no HTML
NODE = node_of("home", "barn-1")


def announced(*names: str, device: str = "barn-1", **mqtt: Any) -> dict[str, dict[str, Any]]:
    settings = settings_of(device, **mqtt).infer.mqtt
    assert settings is not None
    found = sensors(manifest_of(*names), settings, "home", device)
    return {topic: json.loads(payload) for topic, payload in found.items()}


def shown(template: str, said: dict[str, Any]) -> str:
    """As Home Assistant renders it: what is None is shown as such."""
    return ENVIRONMENT.from_string(template).render(value_json=said)


@pytest.mark.parametrize("names", [(), ALL], ids=["label alone", "all kinds of targets"])
@pytest.mark.parametrize("device", ["barn-1", "a_b-c", "Z" * 56])
def test_every_sensor_is_one_that_home_assistant_takes(names: tuple[str, ...], device: str) -> None:
    found = announced(*names, device=device, expire_after_s=30)
    assert len(found) == 1 + len(names)
    assert [words for topic, payload in found.items() for words in wrong(topic, payload)] == []
    assert len({payload["unique_id"] for payload in found.values()}) == len(found)
    before, after = filter_of("home", device, "homeassistant").split("+")
    assert all(topic.startswith(before) and topic.endswith(after) for topic in found)


def test_each_kind_of_target_is_a_sensor_of_its_kind() -> None:
    found = {topic.split("/")[-2]: payload for topic, payload in announced(*ALL).items()}
    assert set(found) == {"label", *ALL}
    assert found["label"]["name"] == "activity", "the first target is what the task is about"
    assert (found["mood"]["device_class"], found["mood"]["options"]) == ("enum", list(TASK.targets[2].labels))
    assert found["skin-temperature"]["unit_of_measurement"] == "°C"
    assert found["steps"]["state_class"] == "measurement"
    assert "unit_of_measurement" not in found["steps"]
    assert found["pulse"]["entity_category"] == "diagnostic"
    assert "expire_after" not in found["label"], "off unless it is set"
    assert found["label"]["device"] == found["mood"]["device"]
    assert announced(expire_after_s=9)[f"homeassistant/sensor/{NODE}/label/config"]["expire_after"] == 9


def test_the_templates_show_what_a_line_says() -> None:
    found = {topic.split("/")[-2]: payload for topic, payload in announced(*ALL).items()}
    states = {name: shown(payload["value_template"], line(2)) for name, payload in found.items()}
    assert states == {
        "label": "still",
        "skin-temperature": "32.5",
        "steps": "2.0",
        "mood": 'said "no"',
        "pulse": "0.125",
    }
    attributes = {
        name: json.loads(shown(payload["json_attributes_template"], line(2)))
        for name, payload in found.items()
    }
    assert attributes["label"] == {"confidence": 0.88, "missing": ["acc"], "version": 7}
    assert attributes["mood"]["confidence"] == 0.7
    assert attributes["steps"] == {"missing": ["acc"], "version": 7}


def test_what_a_line_does_not_say_is_unknown_and_no_error() -> None:
    found = {topic.split("/")[-2]: payload for topic, payload in announced(*ALL).items()}
    bare = line(0, targets=False)
    for name in ALL:
        assert shown(found[name]["value_template"], bare) == "None"
        attributes = json.loads(shown(found[name]["json_attributes_template"], bare))
        assert (attributes["version"], attributes.get("confidence")) == (7, None)
    assert shown(found["pulse"]["value_template"], line(0)) == "None", "the sensor's window was not there"


def test_devices_never_share_a_sensor() -> None:
    pairs = [
        ("home", "a.b"),
        ("home", "a_b"),
        ("home", "a-b"),
        ("other", "a_b"),
        ("home.a", "b"),
        ("h", "A_B"),
    ]
    assert len({node_of(*pair) for pair in pairs}) == len(pairs)


def test_answers_of_a_graph_are_no_sensors() -> None:
    settings = settings_of().infer.mqtt
    assert settings is not None
    graph = BundleManifest.model_validate(
        {
            "task": "facts",
            "method": "any",
            "version": 1,
            "inputs": ("head",),
            "outputs": ("tails",),
            "round": 1,
            "base": "0" * 64,
            "graph": {"top_k": 3, "views": 1, "entity_dim": 4, "relation_dim": 4},
        }
    )
    assert sensors(graph, settings, "home", "barn-1") == {}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state_topic": ""}, "state_topic"),
        ({"value_template": "{{ value_json.label"}, "value_template"),
        ({"device": {"name": "barn"}}, "device"),
        ({"device": {"identifiers": ["a"], "colour": "red"}}, "device"),
        ({"origin": {"sw_version": "1"}}, "origin"),
        ({"expire_after": -1}, "expire_after"),
        ({"state_class": "enum"}, "state_class"),
        ({"unit_of_measurement": "m"}, "options and unit_of_measurement"),
        ({"device_class": None}, "device_class"),
        ({"options": []}, "options"),
        ({"unit": "m"}, "unit"),
    ],
)
def test_the_schema_itself_finds_what_is_wrong(changes: dict[str, Any], why: str) -> None:
    ((topic, payload),) = announced().items()
    assert any(words.startswith(why) for words in wrong(topic, {**payload, **changes}))
    assert wrong(topic.replace(NODE, "a.b"), payload)
