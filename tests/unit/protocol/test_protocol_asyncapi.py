"""The published AsyncAPI document says what the code does."""

import json
import re
from pathlib import Path

import pytest

from protocol.asyncapi import document, text
from protocol.topics import Kind, parse

PUBLISHED = Path(__file__).parents[3] / "docs" / "protocol" / "asyncapi.json"
EXAMPLE = {"fleet": "f1", "device": "d1", "digest": "ab" * 32, "index": "7"}


def references(node):
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(reference, root):
    node = root
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


def test_the_published_document_is_current():
    assert PUBLISHED.read_text() == text(), "run: python -m protocol.asyncapi > docs/protocol/asyncapi.json"


def test_every_reference_leads_somewhere():
    root = document()
    found = set(references(root))
    assert len(found) > 40
    for reference in found:
        assert isinstance(resolve(reference, root), dict)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_topic_has_a_channel_that_parses(kind):
    channel = document()["channels"][kind.value.replace("/", "_")]
    assert parse(channel["address"].format(**EXAMPLE)).kind is kind
    assert set(re.findall(r"{(\w+)}", channel["address"])) == set(channel["parameters"])


def test_every_message_travels_somewhere():
    root = document()
    carried = {name for channel in root["channels"].values() for name in channel["messages"]}
    assert carried == set(root["components"]["messages"])


def test_operations_are_the_agents():
    for operation in document()["operations"].values():
        up = operation["channel"]["$ref"].startswith(("#/channels/up_", "#/channels/ping"))
        assert operation["action"] == ("send" if up else "receive")


def test_retained_is_what_a_newcomer_must_find():
    operations = document()["operations"]
    retained = {name for name, op in operations.items() if op["bindings"]["mqtt"]["retain"]}
    bundles = {"receive_b_model", "receive_down_model"}
    assert retained == {"send_up_state", "receive_b_task", "receive_b_round", "receive_b_offer"} | bundles


def test_schemas_are_of_draft_07():
    assert "prefixItems" not in json.dumps(document())
