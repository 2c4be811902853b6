"""``up/log``: the last log lines of a device, which its coordinator asked for (docs/diagnosis.md)."""

from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.base import UNSEEN, Count, Name, Wire, Word

MAX_LINES: Final = 512
MAX_TEXT: Final = 1000
"""Characters of a line."""
MAX_LOG_BYTES: Final = 48 * 1024
"""Of the message; no broker of docs/brokers.md refuses it."""
_MAX_REFUSAL: Final = 240


class LogLine(Wire):
    """One line, without characters that a terminal would execute."""

    at: Annotated[float, Field(ge=0, le=2**40)]
    """Unix seconds, by the device's clock."""
    level: Word
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT, pattern=f"^[^{UNSEEN}]+$")]


class LogLines(Wire):
    """The newest lines, the oldest of them first; or why there are none."""

    kind: Literal["log"] = "log"
    device: Name
    lines: Annotated[tuple[LogLine, ...], Field(max_length=MAX_LINES)] = ()
    earlier: Count = 0
    """Lines since the start of the agent that are not in this message."""
    refused: (
        Annotated[str, Field(min_length=1, max_length=_MAX_REFUSAL, pattern=f"^[^{UNSEEN}]+$")] | None
    ) = None
    """The device's owner does not permit it; empty without a refusal."""
