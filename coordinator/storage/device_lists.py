"""Compact lists of device names in rows and events. Pure."""

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

MOST_NAMED: Final = 256
"""Devices named in one row of the history."""
_PLAIN_BYTES: Final = 4096
_MOST_BYTES: Final = 64 * 1024 * 1024
_PACKED: Final = "zlib"


def packed(value: Any) -> Any:
    """A JSON value, compressed if its text is long."""
    text = json.dumps(value, separators=(",", ":")).encode()
    if len(text) <= _PLAIN_BYTES:
        return value
    return {_PACKED: base64.b64encode(zlib.compress(text, 6)).decode()}


def unpacked(value: Any) -> Any:
    """The value that :func:`packed` was given.

    Raises:
        ValueError: the text is damaged.
    """
    if not (isinstance(value, dict) and _PACKED in value):
        return value
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(base64.b64decode(value[_PACKED], validate=True), _MOST_BYTES)
    except (zlib.error, binascii.Error, TypeError) as error:
        raise ValueError(f"a compressed value cannot be read: {error}") from None
    if not reader.eof:
        raise ValueError("a compressed value is cut off, or too large")
    return json.loads(text)


def packed_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """The same for an event: its ``type`` stays readable."""
    small = packed(dict(event))
    return {"type": event["type"], **small} if _PACKED in small else dict(event)


def listed(names: Iterable[str], *, whole: bool) -> Any:
    """Names for a row: some of a large fleet, and all of them compressed for policies that look back."""
    known = list(names)
    if len(known) <= MOST_NAMED:
        return known
    row: dict[str, Any] = {"names": known[:MOST_NAMED], "count": len(known)}
    return row | packed(known) if whole else row


def names_in(row: Any) -> tuple[str, ...]:
    """All names that :func:`listed` was given; of a damaged row, those that can be read."""
    if isinstance(row, dict):
        try:
            row = unpacked(row) if _PACKED in row else row.get("names", ())
        except ValueError:
            row = row.get("names", ())
    return tuple(map(str, row)) if isinstance(row, list | tuple) else ()


def count_in(row: Any) -> int:
    """How many names :func:`listed` was given."""
    return int(row.get("count", 0)) if isinstance(row, dict) else len(names_in(row))
