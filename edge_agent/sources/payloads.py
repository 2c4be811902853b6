"""Parses numbers and times in sensor payloads: JSON with paths, plain numbers, words. Pure."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

Path = tuple[str | int, ...]
TimeUnit = Literal["s", "ms", "us", "ns", "iso8601"]
_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d{1,6})\]")
ON_OFF: Final = {"on": 1.0, "off": 0.0, "true": 1.0, "false": 0.0, "open": 1.0, "closed": 0.0}
"""Words that stand for numbers if the table defines no others; case is ignored."""
MAX_SHOWN: Final = 60


class BadPayload(ValueError):  # noqa: N818 - named after its cause, as in protocol.errors
    """The payload does not match the configuration; the message says how."""


class Missing(BadPayload):
    """A value is missing."""


def parse_path(text: str) -> Path:
    """``wind.speed``, ``$.list[0].value``; an empty one is the whole payload.

    Raises:
        ValueError: it is not a path.
    """
    rest = text.removeprefix("$")
    parts: list[str | int] = []
    at = 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or (part[1] is not None and at > 0 and rest[at] != "."):
            raise ValueError(f"{text!r} is not a path; write it as wind.speed, or list[0].value")
        parts.append(part[1] if part[1] is not None else int(part[2]))
        at = part.end()
    return tuple(parts)


def _checked(text: str) -> str:
    parse_path(text)
    return text


JsonPath = Annotated[str, Field(max_length=256), AfterValidator(_checked)]
"""A path in a settings file."""


def loads(payload: bytes) -> Any:
    """Parse JSON; other text is returned as it is, so that a plain word or number needs no quotes.

    Raises:
        BadPayload: not UTF-8, or nested too deep.
    """
    try:
        text = payload.decode().strip()
    except UnicodeDecodeError:
        raise BadPayload(f"not UTF-8: {shown(payload)}") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise BadPayload("nested too deep") from None
    except ValueError:
        return text


def at(value: Any, path: Path) -> Any:
    """The value at a path.

    Raises:
        Missing: there is none.
    """
    for part in path:
        match part, value:
            case str(), dict() if part in value:
                value = value[part]
            case int(), list() if part < len(value):
                value = value[part]
            case _:
                raise Missing(f"nothing at {dotted(path)!r} in {shown(value)}")
    return value


def number(value: Any, words: Mapping[str, float]) -> float:
    """A number, a number as text, or a word of the table; null and empty text are NaN, a gap.

    Raises:
        BadPayload: none of these.
    """
    if value is None or value == "":
        return math.nan
    key = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if key in words:
        return words[key]
    if isinstance(value, bool) or (isinstance(value, str) and not words and key.lower() in ON_OFF):
        return ON_OFF[key.lower()]
    if not isinstance(value, int | float | str):
        raise BadPayload(f"{shown(value)} is not a number")
    try:
        return float(value)
    except (ValueError, OverflowError):  # OverflowError: an integer beyond float64
        known = f" and none of {', '.join(words)}" if words else ""
        raise BadPayload(f"{shown(value)} is not a number{known}") from None


def seconds(value: Any, unit: TimeUnit) -> float:
    """Unix seconds of a time in a payload.

    Raises:
        BadPayload: it is not a time; a date without a time zone is not one.
    """
    if unit == "iso8601":
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            raise BadPayload(f"{shown(value)} is not an ISO 8601 time") from None
        if moment.tzinfo is None:
            raise BadPayload(f"{shown(value)} has no time zone")
        return moment.timestamp()
    seconds = number(value, {}) if not isinstance(value, bool) else math.nan
    if not math.isfinite(seconds):
        raise BadPayload(f"{shown(value)} is not a time")
    return seconds * _SECONDS[unit]


def linear(
    values: Sequence[float] | NDArray[np.float64], factor: float, offset: float
) -> NDArray[np.float32]:
    """``values`` * factor + offset; a value beyond float32 becomes infinite, which windows count as a gap."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled: NDArray[np.float32] = (np.asarray(values, np.float64) * factor + offset).astype(np.float32)
    return scaled


def dotted(path: Iterable[str | int]) -> str:
    """A path as text."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def shown(value: object) -> str:
    """A value in an error message: short, without control characters."""
    text = ascii(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
