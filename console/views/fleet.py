"""All devices: sorted, filtered and paged on the server, live."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, base_of, render
from console.tables.fleet import FleetMember, FleetPicture
from console.tables.reader import SharedReader
from console.tables.watch import TableWatch
from console.views.paging import (
    LastUsed,
    Listing,
    ListQuery,
    SharedRegions,
    Text,
    query_of,
    replaced_address,
    unchanged,
)
from console.words import digest

PATH: Final = "/devices"
Column = Literal[
    "device",
    "status",
    "heard",
    "roles",
    "modalities",
    "quality",
    "version",
    "trial",
    "hindrance",
    "refusals",
    "labels",
]
COLUMNS: Final[Sequence[tuple[Column, str, str]]] = (
    ("device", "Device", "asc"),
    ("status", "Status", "asc"),
    ("heard", "Last heard", "desc"),
    ("roles", "Roles", "asc"),
    ("modalities", "Modalities", "asc"),
    ("quality", "Quality", "asc"),
    ("version", "Version", "desc"),
    ("trial", "Trial", "asc"),
    ("hindrance", "Hindrance", "asc"),
    ("refusals", "Refusals", "desc"),
    ("labels", "Labels", "asc"),
)
_CHOICES: Final = 20
"""Of a filter: devices may report words that nobody foresaw."""


class DevicesQuery(ListQuery):
    """Filters of the list; each device that matches all of them is listed."""

    sort: Column = "device"
    status: Text = ""
    """Of its last state (``online``, ``offline``, ``stopped``, ``never reported``), or ``quarantined``,
    ``revoked``, ``pending``."""
    modality: Text = ""
    role: Text = ""
    label: Text = ""
    """The beginning of ``name: value``."""
    attention: bool = False
    """Only devices that are hindered, quarantined, or wait for admission."""


class ModalityAnswer(BaseModel):
    """Shares from 0 to 1."""

    quality: float | None
    missing: float
    reasons: tuple[str, ...]


class DeviceAnswer(BaseModel):
    """One device; times in Unix seconds."""

    device: str
    status: str
    standing: str
    last_heard: float | None
    roles: tuple[str, ...]
    modalities: dict[str, ModalityAnswer]
    quality: float | None
    version: int | None
    model: str | None
    trial: str
    trial_version: int | None
    hindrance: str
    refusals: int
    labels: tuple[str, ...]
    release: str

    @classmethod
    def of(cls, one: FleetMember) -> "DeviceAnswer":
        """A device of the list."""
        report = one.report
        return cls(
            device=one.name,
            status=report.status,
            standing=one.standing,
            last_heard=one.wall,
            roles=report.roles,
            modalities={
                part.name: ModalityAnswer(quality=part.quality, missing=part.missing, reasons=part.reasons)
                for part in report.modalities
            },
            quality=one.quality,
            version=one.version,
            model=report.model,
            trial=report.trial,
            trial_version=report.trial_version,
            hindrance=report.hindrance,
            refusals=one.refusals,
            labels=report.labels,
            release=report.release,
        )


class DevicesAnswer(BaseModel):
    """One page of the list.

    ``trouble_of_tables``: why the tables cannot be read now; the rest is then what they said before.
    ``total``: devices that match; ``known``: all of them.
    """

    read_wall: float
    trouble_of_tables: str
    known: int
    total: int
    page: int
    pages: int
    devices: tuple[DeviceAnswer, ...]


class FleetDevices:
    """Its page and its operation.

    Args:
        watch: whether the coordinator runs.
        fleet: reads the devices.
    """

    def __init__(self, watch: TableWatch, fleet: SharedReader[FleetPicture]) -> None:
        self._watch = watch
        self._fleet = fleet
        self._found = LastUsed[tuple[Listing[FleetMember], str]]()
        self._regions = SharedRegions()

    def part(self) -> ConsolePart:
        """For the application."""
        words = "Devices by filter, sorted, a page at a time"
        return ConsolePart(
            routes=[Route(PATH, self._page, methods=["GET"])],
            endpoints=[Endpoint("GET", PATH, words, DevicesAnswer, self._list, query=DevicesQuery)],
            navigation=[NavigationLink(PATH, "Devices")],
        )

    async def _page(self, request: Request) -> Response:
        query = query_of(request, DevicesQuery)
        reading, status = await self._fleet.newest(), self._watch.picture
        state = (status.trouble, status.status.get("running"))

        def look() -> tuple[Listing[FleetMember], str]:
            found = Listing(base_of(request) + PATH, query, matching(reading.value, query))
            totals = _totals(reading.value)
            return found, digest(query, found.total, found.rows, state, reading.trouble, totals)

        found, shown = self._found.get((query, reading.revision, state), look)
        if (same := unchanged(request, shown)) is not None:
            return same

        def whole() -> Response:
            return render(
                request,
                "devices.html",
                picture=status,
                reading=reading,
                list=found,
                columns=COLUMNS,
                choices=_choices(reading.value),
                shown=shown,
            )

        page = self._regions.answer(request, shown, whole)
        page.headers.update(replaced_address(request, found.address()))
        return page

    async def _list(self, request: Request) -> DevicesAnswer:
        query = query_of(request, DevicesQuery)
        reading = await self._fleet.newest()
        found = Listing(base_of(request) + PATH, query, matching(reading.value, query))
        return DevicesAnswer(
            read_wall=reading.wall,
            trouble_of_tables=reading.trouble,
            known=0 if reading.value is None else len(reading.value.members),
            total=found.total,
            page=found.number,
            pages=found.pages,
            devices=tuple(DeviceAnswer.of(one) for one in found.rows),
        )


def matching(picture: FleetPicture | None, query: DevicesQuery) -> Sequence[FleetMember]:
    """The devices that a query asks for, in its order."""
    if picture is None:
        return ()
    words, label = query.q.lower(), query.label.lower()
    ordered = picture.in_order(query.sort, descending=query.order == "desc")
    if not (words or label or query.status or query.role or query.modality or query.attention):
        return ordered
    return [
        one
        for one in ordered
        if (not words or words in one.text)
        and (not query.status or query.status in {one.report.status, one.standing})
        and (not query.role or query.role in one.report.roles)
        and (not query.modality or any(query.modality == part.name for part in one.report.modalities))
        and (not label or any(part.lower().startswith(label) for part in one.report.labels))
        and (not query.attention or one.needs_attention)
    ]


def _totals(picture: FleetPicture | None) -> tuple[object, ...]:
    if picture is None:
        return ()
    return len(picture.members), picture.statuses, picture.standings, picture.attention


def _choices(picture: FleetPicture | None) -> Mapping[str, Sequence[str]]:
    """What the filters offer; the address may ask for other words."""
    if picture is None:
        return {"status": (), "modality": ()}
    most = [name for name, _ in (picture.statuses + picture.standings).most_common(_CHOICES)]
    modalities = () if picture.task is None else tuple(one.name for one in picture.task.modalities)
    return {"status": sorted(most), "modality": modalities[:_CHOICES]}
