"""Admission: who asks, who is admitted or revoked, open invites, certificates that end soon."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, render
from console.tables.fleet import FleetPicture
from console.tables.reader import SharedReader
from console.tables.watch import TableWatch
from console.views.device import CertificateAnswer
from console.views.paging import Listing, ListQuery, content_of, query_of, replaced_address, unchanged
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity.store import DeviceRow

PATH: Final = "/enrolment"
COLUMNS: Final = (
    ("device", "Device", "asc"),
    ("status", "Status", "asc"),
    ("until", "Certificate until", "asc"),
    ("enrolled", "Enrolled", "desc"),
)
_SOON: Final = 0.25
"""Share of a certificate's validity: devices renew when a third is left, so these are late."""
_DAY_S: Final = 86400.0
_INVITES: Final = 100
_KEYS: Final[Mapping[str, Callable[[DeviceRow], Any]]] = {
    "device": lambda row: row.name,
    "status": lambda row: row.status,
    "until": lambda row: row.not_after,
    "enrolled": lambda row: row.enrolled_wall,
}


class EnrolmentQuery(ListQuery):
    """Filters of the list."""

    sort: Literal["device", "status", "until", "enrolled"] = "device"
    show: Literal["all", "asks", "admitted", "revoked", "ends_soon"] = "all"
    """``asks``: waits for approval; ``ends_soon``: the certificate ends, and was not renewed in time."""


class InviteAnswer(BaseModel):
    """An open invite; ``device``: None: for any new name. Times in Unix seconds; the secret is not stored."""

    device: str | None
    made: float
    expires: float


class EnrolmentAnswer(BaseModel):
    """One page of the devices of the identity store, and the invites.

    ``authority``: whether there is a store. ``invites``: the oldest, at most 100 of ``open_invites``.
    """

    read_wall: float
    trouble_of_tables: str
    authority: bool
    total: int
    page: int
    pages: int
    devices: tuple[CertificateAnswer, ...]
    open_invites: int
    invites: tuple[InviteAnswer, ...]


class EnrolmentView:
    """Its page and its operation.

    Args:
        settings: how long certificates are valid.
        watch: whether the coordinator runs.
        fleet: reads the identity store, too.
    """

    def __init__(
        self, settings: CoordinatorSettings, watch: TableWatch, fleet: SharedReader[FleetPicture]
    ) -> None:
        self._soon_s = _SOON * settings.identity.device_days * _DAY_S
        self._watch = watch
        self._fleet = fleet

    def part(self) -> ConsolePart:
        """For the application."""
        words = "Devices of the identity store, and open invites"
        return ConsolePart(
            routes=[Route(PATH, self._page, methods=["GET"])],
            endpoints=[Endpoint("GET", PATH, words, EnrolmentAnswer, self._answer, query=EnrolmentQuery)],
            navigation=[NavigationLink(PATH, "Enrolment", of_fleet=True)],
        )

    async def _page(self, request: Request) -> Response:
        query = query_of(request, EnrolmentQuery)
        reading, status, now = await self._fleet.newest(), self._watch.picture, time.time()
        found = Listing(PATH, query, self._matching(reading.value, query, now))
        counts = self._counts(reading.value, now)
        invites = () if reading.value is None else reading.value.identities.invites
        state = (status.trouble, status.status.get("running"), reading.trouble, reading.value is None)
        shown = content_of(request, query, found.total, found.rows, counts, invites[:_INVITES], state)
        if (same := unchanged(request, shown)) is not None:
            return same
        page = render(
            request,
            "enrolment.html",
            picture=status,
            reading=reading,
            list=found,
            columns=COLUMNS,
            counts=counts,
            soon=now + self._soon_s,
            invites=invites[:_INVITES],
            shown=shown,
        )
        page.headers.update(replaced_address(request, found.address()))
        return page

    async def _answer(self, request: Request) -> EnrolmentAnswer:
        query = query_of(request, EnrolmentQuery)
        reading = await self._fleet.newest()
        found = Listing(PATH, query, self._matching(reading.value, query, time.time()))
        picture = reading.value
        invites = () if picture is None else picture.identities.invites
        return EnrolmentAnswer(
            read_wall=reading.wall,
            trouble_of_tables=reading.trouble,
            authority=picture is not None and picture.identities.there,
            total=found.total,
            page=found.number,
            pages=found.pages,
            devices=tuple(CertificateAnswer.of(row) for row in found.rows),
            open_invites=len(invites),
            invites=tuple(
                InviteAnswer(device=one.device, made=one.made_wall, expires=one.expires_wall)
                for one in invites[:_INVITES]
            ),
        )

    def _counts(self, picture: FleetPicture | None, now: float) -> dict[str, int]:
        rows = () if picture is None else tuple(picture.identities.devices.values())
        return {
            "asks": sum(row.status == "pending" for row in rows),
            "admitted": sum(row.status == "active" for row in rows),
            "revoked": sum(row.status == "revoked" for row in rows),
            "ends_soon": sum(self._ends_soon(row, now) for row in rows),
            "invites": 0 if picture is None else len(picture.identities.invites),
        }

    def _ends_soon(self, row: DeviceRow, now: float) -> bool:
        return row.status == "active" and row.not_after is not None and row.not_after < now + self._soon_s

    def _matching(
        self, picture: FleetPicture | None, query: EnrolmentQuery, now: float
    ) -> Sequence[DeviceRow]:
        if picture is None:
            return ()
        words, status = query.q.lower(), _STATUS.get(query.show)
        rows = [
            row
            for row in picture.identities.devices.values()
            if (status is None or row.status == status)
            and (query.show != "ends_soon" or self._ends_soon(row, now))
            and (not words or words in row.name.lower() or row.key.startswith(words))
        ]
        key = _KEYS[query.sort]
        valued = [row for row in rows if key(row) is not None]
        missing = [row for row in rows if key(row) is None]
        return [*sorted(valued, key=key, reverse=query.order == "desc"), *missing]


_STATUS: Final = {"asks": "pending", "admitted": "active", "revoked": "revoked"}
