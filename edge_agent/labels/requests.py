"""Requests of the local interface: a line of JSON each, checked before anything is done."""

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from protocol.base import Frozen, Label, first_fault
from protocol.errors import Reason, Refused

MAX_REQUEST: Final = 4096
"""Bytes of a request."""
SOCKET: Final = "agent.sock"
"""In ``cache_dir``."""
WindowName = Annotated[str, Field(min_length=1, max_length=60)]
Origin = Annotated[str, Field(pattern=r"^[a-z][a-z ]{0,30}$")]


class ListWindows(Frozen):
    """The newest stored windows, and the labels of the task."""

    do: Literal["windows"]
    count: Annotated[int, Field(ge=1, le=100)] = 20


class Propose(Frozen):
    """The windows whose labels are worth most."""

    do: Literal["propose"]
    count: Annotated[int, Field(ge=1, le=20)] = 5


class ShowWindow(Frozen):
    """The values of one window."""

    do: Literal["show"]
    window: WindowName


class GiveLabel(Frozen):
    """Label a window."""

    do: Literal["label"]
    window: WindowName
    label: Label
    by: Origin = "local"


class UndoLabel(Frozen):
    """Take the last label back; with ``window`` only if it is that window's."""

    do: Literal["undo"]
    window: WindowName | None = None


class SkipWindow(Frozen):
    """Do not propose this window again while the agent runs."""

    do: Literal["skip"]
    window: WindowName


class Live(Frozen):
    """Samples, windows and predictions as they come, until the connection ends."""

    do: Literal["live"]


class LastLines(Frozen):
    """The last log lines of the agent."""

    do: Literal["lines"]


Request = ListWindows | Propose | ShowWindow | GiveLabel | UndoLabel | SkipWindow | Live | LastLines
_REQUEST: Final = TypeAdapter[Request](Annotated[Request, Field(discriminator="do")])


def read_request(line: bytes) -> Request:
    """Check a request.

    Raises:
        Refused: it is none.
    """
    try:
        return _REQUEST.validate_json(line)
    except ValidationError as error:
        raise Refused(Reason.MALFORMED, f"the request is wrong: {first_fault(error)}") from None
