"""Discovery messages for Home Assistant: a sensor for each target, and entities that label windows. Pure.

Discovery by single component (``<prefix>/sensor/<node>/<object>/config``): releases before 2024.11 know no
other, and newer ones still accept it. No ``object_id``: newer ones ignore it, and the names of device and
sensor make a better entity id.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final

from edge_agent.config.publish import PublishSettings
from protocol.bundle import BundleManifest
from protocol.tasks.task import LABEL, Target
from protocol.topics import split_namespace

PREDICTION: Final = "prediction"
AVAILABILITY: Final = "availability"
"""Below the device's topic."""
ONLINE: Final = "online"
OFFLINE: Final = "offline"
LABEL_STATE: Final = "label"
"""Below the device's topic: the window that is asked for; ``set`` and ``press`` below it are commands."""
PRESSES: Final = {"undo": "undo last label", "skip": "skip this window", "newest": "newest window"}
"""Buttons: payload and name."""
COMPONENTS: Final = ("sensor", "select", "button")
_UNITS: Final = {"degC": "°C", "degF": "°F"}
"""Spelt as in Home Assistant, so that it draws them on one axis with its other sensors."""
_NO_UNIT: Final = "1"


def node_of(fleet: str, device: str) -> str:
    """The device's level in discovery topics, and its identifier; unique for each device and further task.

    Args:
        fleet: namespace of the task.
        device: its name.
    """
    mark = hashlib.sha256(f"{fleet}/{device}".encode()).hexdigest()[:8]
    return f"lichen_{device}_{mark}"


def filter_of(fleet: str, device: str, prefix: str, component: str = "sensor") -> str:
    """Topic filter of all entities of a kind that were ever announced for this device."""
    return f"{prefix}/{component}/{node_of(fleet, device)}/+/config"


def label_topics(settings: PublishSettings, device: str) -> tuple[str, str]:
    """Topics of the commands: a label, and a button."""
    base = f"{settings.base(device)}/{LABEL_STATE}"
    return f"{base}/set", f"{base}/press"


def label_entities(
    settings: PublishSettings, fleet: str, device: str, task: str, classes: Sequence[str]
) -> dict[str, bytes]:
    """Discovery topic -> payload of the ``select`` that labels the proposed window, and of its buttons.

    Args:
        settings: of the publication.
        fleet: the device's.
        device: its name.
        task: its name.
        classes: of the task.
    """
    node, state = node_of(fleet, device), f"{settings.base(device)}/{LABEL_STATE}"
    set_topic, press_topic = label_topics(settings, device)
    shared = _shared(settings, fleet, device, task)
    keys = ("window", "at", "reason", "prediction", "last", "error")
    attributes = ", ".join(f"{key!r}: value_json.get({key!r})" for key in keys)
    select = {
        "name": "label of a window",
        "unique_id": f"{node}_label_of_window",
        "options": list(classes),
        "state_topic": state,
        "value_template": _template("value_json.get('label')"),
        "json_attributes_topic": state,
        "json_attributes_template": _template(f"{{{attributes}}} | tojson"),
        "command_topic": set_topic,
        # The window that the person sees, not one that was proposed meanwhile.
        "command_template": _template("{'label': value, 'window': this.attributes.get('window')} | tojson"),
        **shared,
    }
    found = {f"{settings.discovery_prefix}/select/{node}/label/config": _json(select)}
    for press, name in PRESSES.items():
        button = {
            "name": name,
            "unique_id": f"{node}_label_{press}",
            "command_topic": press_topic,
            "payload_press": press,
            **shared,
        }
        found[f"{settings.discovery_prefix}/button/{node}/label_{press}/config"] = _json(button)
    return found


def _shared(settings: PublishSettings, fleet: str, device: str, task: str) -> dict[str, Any]:
    """What all entities of a device have."""
    return {
        "availability_topic": f"{settings.base(device)}/{AVAILABILITY}",
        "device": {
            "identifiers": [node_of(fleet, device)],
            "name": " ".join(filter(None, (device, split_namespace(fleet)[1]))),
            "manufacturer": "lichen",
            "model": task,
            "sw_version": version("lichen"),
        },
        "origin": {"name": "lichen", "sw_version": version("lichen")},
    }


def sensors(manifest: BundleManifest, settings: PublishSettings, fleet: str, device: str) -> dict[str, bytes]:
    """Discovery topic -> payload; empty for a model that answers questions about a knowledge graph.

    Args:
        manifest: of the model that predicts.
        settings: of the publication.
        fleet: the device's.
        device: its name.
    """
    node, base = node_of(fleet, device), settings.base(device)
    shared = {
        "state_topic": f"{base}/{PREDICTION}",
        "json_attributes_topic": f"{base}/{PREDICTION}",
        **({"expire_after": settings.expire_after_s} if settings.expire_after_s else {}),
        **_shared(settings, fleet, device, manifest.task),
    }
    return {
        f"{settings.discovery_prefix}/sensor/{node}/{target.name}/config": _json(
            {"unique_id": f"{node}_{target.name}", **_of(target, manifest), **shared}
        )
        for target in manifest.predicted
    }


def _json(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload, ensure_ascii=False, sort_keys=True).encode()


def _of(target: Target, manifest: BundleManifest) -> dict[str, Any]:
    """The settings in which the sensors of a device differ."""
    if target.name == LABEL:
        said, name = "value_json", manifest.task
    else:
        said, name = f"value_json.get('targets', {{}}).get('{target.name}', {{}})", target.name
    attributes = dict(_attributes(target, said))
    return {
        "name": name,
        "json_attributes_template": _template(
            f"{{{', '.join(f'{key!r}: {value}' for key, value in attributes.items())}}} | tojson"
        ),
        **_value(target, said),
    }


def _value(target: Target, said: str) -> dict[str, Any]:
    if target.kind == "classification":
        key, kind = "label", {"device_class": "enum", "options": list(target.labels)}
    elif target.kind == "regression":
        unit = _UNITS.get(target.unit, target.unit)
        key, kind = "value", {"state_class": "measurement"}
        kind |= {} if unit == _NO_UNIT else {"unit_of_measurement": unit}
    else:  # a generated modality is too large for a state: the state is its distance from the sensor's
        key, kind = "mse", {"state_class": "measurement", "entity_category": "diagnostic"}
    return {"value_template": _template(f"{said}.get('{key}')"), **kind}


def _attributes(target: Target, said: str) -> Iterator[tuple[str, str]]:
    """Few, and coarse: Home Assistant writes a row to its database whenever one changes."""
    if target.kind == "classification":
        # The maximum of nothing is undefined, and undefined is not JSON.
        chances = f"{said}.get('probabilities')"
        yield "confidence", f"({chances} | max | round(2)) if {chances} else none"
    yield "missing", "value_json.get('present', {}).items() | rejectattr('1') | map(attribute='0') | list"
    yield "version", "value_json.get('version')"


def _template(expression: str) -> str:
    return f"{{{{ {expression} }}}}"
