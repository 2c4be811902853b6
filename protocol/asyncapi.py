"""Generates an AsyncAPI 3.0 document from the models and the topics.

Written from the agent's side: it *sends* on ``up/``, and *receives* on ``down/`` and ``b/``.
``python -m protocol.asyncapi`` prints it; a test compares ``docs/protocol/asyncapi.json`` with that.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from protocol import messages as m
from protocol.bundle import BundleManifest
from protocol.frames.headers import BlobHeader, Manifest, UpdateHeader
from protocol.frames.tensors import Codec
from protocol.log_lines import LogLines
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from protocol.topics import Kind

_FRAME: Final = "UpdateFrame"
_CHUNK: Final = "Chunk"
_PING: Final = "Ping"
_SCHEMAS: Final = "#/components/schemas/{model}"


@dataclass(frozen=True)
class _Channel:
    """The messages of one kind of topic."""

    summary: str
    messages: tuple[type[BaseModel] | str, ...]
    retained: bool = False


_CHANNELS: Final = {
    Kind.STATE: _Channel("The device's name, data and status; also its will.", (m.State,), True),
    Kind.UPDATE: _Channel(
        "One round's update: the frame itself, or a pointer to one that is larger than a chunk.",
        (_FRAME, m.BlobPointer),
    ),
    Kind.UP_BLOB: _Channel("A chunk of an announced update.", (_CHUNK,)),
    Kind.METRIC: _Channel(
        "Small numbers about a local round, or what the device reports about itself.", (m.Metric,)
    ),
    Kind.LOG: _Channel("The device's last log lines, as asked for.", (LogLines,)),
    Kind.FETCH: _Channel("The device pulls chunks of a blob.", (m.Fetch,)),
    Kind.PING: _Channel("Tests whether the broker answers (PUBACK); nobody subscribes.", (_PING,)),
    Kind.RECEIPT: _Channel(
        "The update is in the journal, or refused and why; or which of its chunks are wanted.",
        (m.Receipt, m.Want),
    ),
    Kind.DOWN_BLOB: _Channel("A chunk of a blob that the device pulled.", (_CHUNK,)),
    Kind.MODEL: _Channel("The bundle that this one device should run.", (m.ModelPointer,), True),
    Kind.CMD: _Channel(
        "A fetch that cannot be answered, or a request for the state or the last log lines.", (m.Command,)
    ),
    Kind.TASK: _Channel("What the fleet learns.", (TaskAnnouncement,), True),
    Kind.ROUND: _Channel("State of the round, for people and dashboards.", (m.RoundAnnouncement,), True),
    Kind.FLEET_MODEL: _Channel("The bundle that every device should run.", (m.ModelPointer,), True),
    Kind.OFFER: _Channel(
        "The devices of the open round's cohort train on this version; empty when the round is over.",
        (m.Offer,),
        True,
    ),
}


def document() -> dict[str, Any]:
    """The AsyncAPI 3.0 document."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "lichen",
            "version": "1",
            "description": "Federated learning on multimodal sensor streams over MQTT, seen from the agent.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "broker": {
                "host": "127.0.0.1:1883",
                "protocol": "mqtt",
                "protocolVersion": "5",
                "description": "Any broker of MQTT 5 or 3.1.1; nothing here needs a feature of 5.",
            }
        },
        "channels": {_key(kind): _channel(kind, channel) for kind, channel in _CHANNELS.items()},
        "operations": {
            ("send_" if _is_up(kind) else "receive_") + _key(kind): _operation(kind, channel)
            for kind, channel in _CHANNELS.items()
        },
        "components": {"parameters": _PARAMETERS, "messages": _messages(), "schemas": _schemas()},
    }


_PARAMETERS: Final = {
    "fleet": {"description": "The fleet's name, or fleet~task for a further task: one topic level."},
    "device": {"description": "The device's name; the broker's ACL binds it to the certificate's name."},
    "digest": {"description": "SHA-256 of the whole blob, 64 lower-case hexadecimal digits."},
    "index": {"description": "Number of the chunk, from 0, decimal without leading zeros."},
}


def _is_up(kind: Kind) -> bool:
    return kind is Kind.PING or kind.value.startswith("up/")


def _key(kind: Kind) -> str:
    return kind.value.replace("/", "_")


def _name(message: type[BaseModel] | str) -> str:
    return message if isinstance(message, str) else message.__name__


def _address(kind: Kind) -> str:
    level = "" if kind.value.startswith("b/") else "d/{device}/"
    tail = "/{digest}-{index}" if kind in {Kind.UP_BLOB, Kind.DOWN_BLOB} else ""
    return f"lichen/v1/{{fleet}}/{level}{kind.value}{tail}"


def _channel(kind: Kind, channel: _Channel) -> dict[str, Any]:
    address = _address(kind)
    return {
        "address": address,
        "summary": channel.summary,
        "parameters": {
            name: {"$ref": f"#/components/parameters/{name}"}
            for name in _PARAMETERS
            if f"{{{name}}}" in address
        },
        "messages": {
            name: {"$ref": f"#/components/messages/{name}"} for name in map(_name, channel.messages)
        },
    }


def _operation(kind: Kind, channel: _Channel) -> dict[str, Any]:
    at = f"#/channels/{_key(kind)}"
    return {
        "action": "send" if _is_up(kind) else "receive",
        "channel": {"$ref": at},
        "summary": channel.summary,
        "messages": [{"$ref": f"{at}/messages/{_name(message)}"} for message in channel.messages],
        "bindings": {"mqtt": {"qos": 1, "retain": channel.retained, "bindingVersion": "0.2.0"}},
    }


def _control_models() -> Iterator[type[BaseModel]]:
    """All members of the union that ``messages.decode`` reads."""
    union, *_ = get_args(m.Control)
    yield from get_args(union)


def _messages() -> dict[str, Any]:
    control = {
        model.__name__: {
            "name": model.__name__,
            "summary": " ".join((model.__doc__ or "").split()),
            "contentType": "application/json",
            "payload": {"$ref": _SCHEMAS.format(model=model.__name__)},
        }
        for model in _control_models()
    }
    return control | {
        _FRAME: {
            "name": _FRAME,
            "summary": "CBOR: tag 55799, then [1, header, {name: [codec, shape, data, low, step]}].",
            "contentType": "application/cbor",
            "payload": {"$ref": _SCHEMAS.format(model=_FRAME)},
        },
        _CHUNK: {
            "name": _CHUNK,
            "summary": "Bytes from index * chunk_bytes on of the blob; only the last chunk may be shorter.",
            "contentType": "application/octet-stream",
            "payload": {"type": "string", "format": "binary"},
        },
        _PING: {
            "name": _PING,
            "summary": "Empty.",
            "contentType": "application/octet-stream",
            "payload": {"type": "string", "maxLength": 0},
        },
    }


def _schemas() -> dict[str, Any]:
    """JSON schemas of all models, and of the header of the update frame."""
    models: list[type[BaseModel]] = [
        *_control_models(),
        Task,
        UpdateHeader,
        BlobHeader,
        Manifest,
        BundleManifest,
    ]
    _, generated = models_json_schema([(model, "validation") for model in models], ref_template=_SCHEMAS)
    tensor: list[dict[str, Any]] = [
        {"enum": [codec.value for codec in Codec], "description": "codec"},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "description": "shape"},
        *({"type": "string", "format": "binary", "description": what} for what in ("data", "low", "step")),
    ]
    header = {"$ref": _SCHEMAS.format(model="UpdateHeader")}
    tensors = {"type": "object", "additionalProperties": _fixed(tensor)}
    frame = _fixed([{"const": 1, "description": "format"}, header, tensors])
    schemas: dict[str, Any] = _draft_07(generated["$defs"])
    return dict(sorted({**schemas, _FRAME: frame}.items()))


def _fixed(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}


def _draft_07(schema: Any) -> Any:
    """Convert tuples from draft 2020-12, as pydantic writes them, to draft 07, as AsyncAPI wants them."""
    if isinstance(schema, dict):
        return {"items" if key == "prefixItems" else key: _draft_07(value) for key, value in schema.items()}
    return [_draft_07(value) for value in schema] if isinstance(schema, list) else schema


def text() -> str:
    """The content of ``docs/protocol/asyncapi.json``."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
