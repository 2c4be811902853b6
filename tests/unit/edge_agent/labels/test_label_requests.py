import json

import pytest

from edge_agent.labels.requests import GiveLabel, read_request
from protocol.errors import Refused


def test_a_request_is_read() -> None:
    line = b'{"do": "label", "window": "1-00", "label": "walk"}'
    assert read_request(line) == GiveLabel(do="label", window="1-00", label="walk")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"do": "exec"}',
        b'{"do": "windows", "count": 100000}',
        b'{"do": "propose", "count": 0}',
        b'{"do": "label", "window": "1-00"}',
        b'{"do": "undo", "window": ""}',
        b'{"do": "skip", "window": "1", "path": "/etc/passwd"}',
        json.dumps({"do": "label", "window": "1" * 61, "label": "a"}).encode(),
        json.dumps({"do": "label", "window": "1", "label": "a" * 65}).encode(),
        json.dumps({"do": "label", "window": "1", "label": "a", "by": "x\ny"}).encode(),
        b"[" * 4000,
    ],
)
def test_anything_else_is_refused_in_words(line: bytes) -> None:
    with pytest.raises(Refused, match="the request is wrong"):
        read_request(line)
