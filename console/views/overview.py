"""The first page: where the coordinator stands, and what it waits for."""

from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, render
from console.tables.watch import TableWatch
from runtime.waits import Wait
from runtime.web.events import EventStream


class WaitAnswer(BaseModel):
    """One wait; times in Unix seconds."""

    what: str
    why: str
    since: float | None
    until: float | None
    then: str
    waited_s: float | None
    left_s: float | None

    @classmethod
    def of(cls, wait: Wait, now: float) -> "WaitAnswer":
        """A wait as seen at a time, Unix seconds."""
        return cls.model_validate(wait.as_json(now))


class StatusAnswer(BaseModel):
    """What ``lichen coordinator status --format json`` prints.

    ``trouble_of_tables``: why the tables cannot be read now; ``status`` is then what they said before.
    """

    read_wall: float
    trouble_of_tables: str
    running: bool | None
    status: dict[str, Any]
    waits: tuple[WaitAnswer, ...]


class Overview:
    """Its page, its operation, and the events that all pages hear.

    Args:
        watch: reads the tables.
        events: its events.
    """

    def __init__(self, watch: TableWatch, events: EventStream) -> None:
        self._watch = watch
        self._events = events

    def part(self) -> ConsolePart:
        """For the application."""
        return ConsolePart(
            routes=[Route("/", self._page, methods=["GET"]), Route("/events", self._hear, methods=["GET"])],
            endpoints=[
                Endpoint(
                    "GET",
                    "/status",
                    "Where the coordinator stands, and its waits",
                    StatusAnswer,
                    self._status,
                )
            ],
            navigation=[NavigationLink("/", "Overview")],
        )

    async def _page(self, request: Request) -> Response:
        return render(request, "overview.html", picture=self._watch.picture)

    async def _hear(self, request: Request) -> Response:  # noqa: ARG002 - a route is called with its request
        return self._events.answer()

    async def _status(self, request: Request) -> StatusAnswer:  # noqa: ARG002 - as above
        picture = self._watch.picture
        return StatusAnswer(
            read_wall=picture.wall,
            trouble_of_tables=picture.trouble,
            running=None if picture.trouble else picture.status.get("running"),
            status=dict(picture.status),
            waits=tuple(WaitAnswer.of(wait, picture.wall) for wait in picture.waits),
        )
