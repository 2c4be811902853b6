"""A schema of the discovery messages that Home Assistant accepts for an MQTT sensor.

Written from the integrations of 2024.3.3 and 2026.11.0 (``components/mqtt/{schemas,sensor,discovery}.py``): a
message that one of them refuses is wrong here. Stricter in one point: they ignore unknown keys; here these
are typing errors. ``tests/e2e/test_home_assistant.py`` compares it with Home Assistant itself.
"""

import re
from collections.abc import Callable
from typing import Any

import jinja2

TOPIC = re.compile(r"homeassistant/(?P<component>\w+)/(?:[a-zA-Z0-9_-]+/)?[a-zA-Z0-9_-]+/config")
_STATE_CLASSES = {"measurement", "total", "total_increasing"}
MAX_STATE = 255
"""Maximum number of characters of a state."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _topic(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value.encode()) <= 65535 and "\0" not in value


def _template(value: Any) -> bool:
    try:
        jinja2.Environment(autoescape=False).parse(value)  # noqa: S701 - no HTML
    except (jinja2.TemplateError, TypeError):
        return False
    return isinstance(value, str)


def _table(known: dict[str, Callable[[Any], bool]], required: str) -> Callable[[Any], bool]:
    def judge(value: Any) -> bool:
        if not isinstance(value, dict) or not value.get(required):
            return False
        return all(key in known and known[key](one) for key, one in value.items())

    return judge


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


_DEVICE = dict.fromkeys(
    ("manufacturer", "model", "name", "sw_version", "hw_version", "serial_number", "suggested_area"), _text
)
KEYS: dict[str, Callable[[Any], bool]] = {
    "state_topic": _topic,
    "json_attributes_topic": _topic,
    "availability_topic": _topic,
    "value_template": _template,
    "json_attributes_template": _template,
    "payload_available": _text,
    "payload_not_available": _text,
    "unique_id": _text,
    "name": _text,
    "unit_of_measurement": _text,
    "device_class": {"enum"}.__contains__,
    "state_class": _STATE_CLASSES.__contains__,
    "entity_category": {"diagnostic"}.__contains__,
    "options": lambda value: _texts(value) and bool(value),
    "expire_after": lambda value: isinstance(value, int) and value >= 0,
    "device": _table({"identifiers": _texts, **_DEVICE}, "identifiers"),
    "origin": _table({"name": _text, "sw_version": _text, "support_url": _text}, "name"),
}


def wrong(topic: str, payload: dict[str, Any]) -> list[str]:
    """Errors that Home Assistant would report, or fields it would not understand; empty if there are none."""
    found = TOPIC.fullmatch(topic)
    words = [] if found and found["component"] == "sensor" else [f"topic {topic}"]
    words += [f"{key}: {value!r}" for key, value in payload.items() if not KEYS.get(key, _never)(value)]
    words += [f"{key} is missing" for key in ("state_topic",) if key not in payload]
    if "options" in payload:
        if payload.get("device_class") != "enum":
            words.append("options are of device_class enum")
        words += [f"options and {k}" for k in ("state_class", "unit_of_measurement") if k in payload]
        words += [f"option {one!r} is too long" for one in payload["options"] if len(str(one)) > MAX_STATE]
    return words


def _never(_value: Any) -> bool:
    return False
