"""Refused messages and updates, and devices in quarantine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, base_of, render
from console.tables.fleet import FleetPicture, RefusalCount
from console.tables.reader import SharedReader
from console.tables.refused_updates import RefusedUpdate
from console.tables.watch import TableWatch
from console.views.device import QuarantineAnswer, RefusalAnswer
from console.views.paging import Listing, ListQuery, Text, content_of, query_of, replaced_address, unchanged

PATH: Final = "/refusals"
COLUMNS: Final = (
    ("device", "Device", "asc"),
    ("reason", "Reason", "asc"),
    ("count", "Count", "desc"),
    ("last", "Last", "desc"),
)
_SHOWN: Final = 100
"""Of refused updates and quarantines; the API has all."""
_KEYS: Final[Mapping[str, Callable[[RefusalCount], Any]]] = {
    "device": lambda row: (row.device, row.reason),
    "reason": lambda row: (row.reason, row.device),
    "count": lambda row: row.count,
    "last": lambda row: row.wall,
}


class RefusalsQuery(ListQuery):
    """Filters of the lists."""

    sort: Literal["device", "reason", "count", "last"] = "last"
    order: Literal["asc", "desc"] = "desc"
    reason: Text = ""


class RefusedUpdateAnswer(BaseModel):
    """A refused update; ``wall``: Unix seconds."""

    wall: float
    device: str
    round: int
    reason: str


class RefusalsAnswer(BaseModel):
    """One page of the counts of refused messages, by device and reason; and the newest refused updates."""

    read_wall: float
    trouble_of_tables: str
    total: int
    page: int
    pages: int
    refusals: tuple[RefusalAnswer, ...]
    updates: tuple[RefusedUpdateAnswer, ...]


class QuarantinesAnswer(BaseModel):
    """Devices in quarantine, by name; each is in the coordinator's record of offences."""

    read_wall: float
    trouble_of_tables: str
    devices: tuple[QuarantineAnswer, ...]


class RefusalsView:
    """Its page and its operations.

    Args:
        watch: whether the coordinator runs.
        fleet: reads refusals and quarantines, too.
    """

    def __init__(self, watch: TableWatch, fleet: SharedReader[FleetPicture]) -> None:
        self._watch = watch
        self._fleet = fleet

    def part(self) -> ConsolePart:
        """For the application."""
        words = "Refused messages by device and reason, and refused updates"
        return ConsolePart(
            routes=[Route(PATH, self._page, methods=["GET"])],
            endpoints=[
                Endpoint("GET", PATH, words, RefusalsAnswer, self._answer, query=RefusalsQuery),
                Endpoint("GET", "/quarantine", "Devices in quarantine", QuarantinesAnswer, self._quarantine),
            ],
            navigation=[NavigationLink(PATH, "Refusals")],
        )

    async def _page(self, request: Request) -> Response:
        query = query_of(request, RefusalsQuery)
        reading, status = await self._fleet.newest(), self._watch.picture
        picture = reading.value
        found = Listing(base_of(request) + PATH, query, _matching(picture, query))
        updates = _updates(picture, query)
        barred = [] if picture is None else list(picture.quarantine.items())
        state = (status.trouble, status.status.get("running"), reading.trouble, picture is None)
        shown = content_of(request, query, found.total, found.rows, updates[:_SHOWN], barred, state)
        if (same := unchanged(request, shown)) is not None:
            return same
        page = render(
            request,
            "refusals.html",
            picture=status,
            reading=reading,
            list=found,
            columns=COLUMNS,
            reasons=[] if picture is None else sorted({row.reason for row in picture.refusals}),
            updates=updates[:_SHOWN],
            more_updates=max(0, len(updates) - _SHOWN),
            barred=barred[:_SHOWN],
            more_barred=max(0, len(barred) - _SHOWN),
            shown=shown,
        )
        page.headers.update(replaced_address(request, found.address()))
        return page

    async def _answer(self, request: Request) -> RefusalsAnswer:
        query = query_of(request, RefusalsQuery)
        reading = await self._fleet.newest()
        found = Listing(base_of(request) + PATH, query, _matching(reading.value, query))
        return RefusalsAnswer(
            read_wall=reading.wall,
            trouble_of_tables=reading.trouble,
            total=found.total,
            page=found.number,
            pages=found.pages,
            refusals=tuple(RefusalAnswer.of(row) for row in found.rows),
            updates=tuple(
                RefusedUpdateAnswer(wall=one.wall, device=one.device, round=one.round, reason=one.reason)
                for one in _updates(reading.value, query)
            ),
        )

    async def _quarantine(self, request: Request) -> QuarantinesAnswer:  # noqa: ARG002 - a route is called with its request
        reading = await self._fleet.newest()
        barred = () if reading.value is None else reading.value.quarantine.items()
        return QuarantinesAnswer(
            read_wall=reading.wall,
            trouble_of_tables=reading.trouble,
            devices=tuple(QuarantineAnswer.of(name, one) for name, one in barred),
        )


def _matching(picture: FleetPicture | None, query: RefusalsQuery) -> Sequence[RefusalCount]:
    if picture is None:
        return ()
    words = query.q.lower()
    rows = [
        row
        for row in picture.refusals
        if (not query.reason or row.reason == query.reason)
        and (not words or words in row.device.lower() or words in row.detail.lower())
    ]
    return sorted(rows, key=_KEYS[query.sort], reverse=query.order == "desc")


def _updates(picture: FleetPicture | None, query: RefusalsQuery) -> Sequence[RefusedUpdate]:
    if picture is None:
        return ()
    words = query.q.lower()
    return [
        one
        for one in picture.refused_updates
        if (not query.reason or one.reason == query.reason) and (not words or words in one.device.lower())
    ]
