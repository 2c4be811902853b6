"""The base of every model on the wire, and the bounded field types they share."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from protocol.errors import Reason

MAX_NAME: Final = 56
"""Characters: a client id of ours, which holds two names and 14 more, has at most 126; AWS takes 128."""
NAME_PATTERN: Final = rf"^[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME - 1}}}$"
NAME_ERROR: Final = "name"
"""pydantic's error type for an invalid :data:`Name`."""
_NAME: Final = re.compile(NAME_PATTERN.replace("$", r"\Z"))
_SHOWN: Final = 80
UNSEEN: Final = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
"""For patterns: control, bidirectional and invisible characters."""


class Frozen(BaseModel):
    """An immutable record that refuses unknown fields and non-finite numbers.

    Python code that builds one with a wrong value gets pydantic's ``ValidationError``; bytes from a peer go
    through :func:`protocol.messages.decode`, which turns that into a ``Refused`` with the field's path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Wire(Frozen):
    """A record that peers of another release may extend: unknown fields are ignored, known ones checked."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def name_trouble(text: str) -> str:
    """Why a text is no valid :data:`Name`, and the nearest valid one; empty if it is valid."""
    if _NAME.match(text):
        return ""
    near = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:MAX_NAME].rstrip("-_")
    rule = f"1 to {MAX_NAME} letters, digits, '_' and '-', a letter or digit first"
    words = f"{text[:_SHOWN]!r} is no name: {rule}"
    return f"{words}; write {near!r}" if near else words


def is_name(text: str) -> bool:
    """Whether a text is a :data:`Name`."""
    return _NAME.match(text) is not None


def _named(text: str) -> str:
    if words := name_trouble(text):
        raise PydanticCustomError(NAME_ERROR, "{words}", {"words": words})
    return text


Name = Annotated[str, AfterValidator(_named), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
"""Name of a fleet, device, task or method: valid as a topic level, a client id of all known brokers, a common
name and a file name (ADR 29)."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of some bytes, in lower-case hexadecimal."""

WORD_PATTERN: Final = r"^[a-z][a-z0-9_]{0,31}$"
Word = Annotated[str, Field(pattern=WORD_PATTERN)]
"""An enumerated word. Newer releases may add others: readers must handle and display unknown ones."""

ReasonWord = Annotated[Reason | Word, Field(union_mode="left_to_right")]
"""A :class:`Reason`, or one that a newer release added."""

Label = Annotated[str, Field(min_length=1, max_length=64)]
Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400.0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


def first_fault(error: ValidationError, *within: str) -> str:
    """The first error, with its path (``within`` begins it); at most 500 characters."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(map(str, [*within, *first["loc"]])) or "message"
    return f"{path}: {first['msg']}"[:500]
