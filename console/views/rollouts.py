"""The pages of rollouts: what is rolled out now and was before, one rollout, its gates and its devices."""

import time
from functools import partial
from typing import Any, Final, Literal

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, base_of, render
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.overview import WaitAnswer
from console.views.paging import Listing, ListQuery, query_of, unchanged
from console.words import digest
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.status.rollout_records import RolloutDetail, RolloutDeviceRow, RolloutList
from coordinator.status.rollouts import detail, list_rollouts, with_reports
from coordinator.status.versions import known_versions
from coordinator.storage.database import Database

_PATH: Final = "/rollouts"
KINDS: Final = {"committed": "good", "rolled_back": "bad", "refused": "bad", "trial": "", "waiting": ""}
"""Of a device's phase: kind of tag."""
_ORDER: Final = ("refused", "rolled_back", "trial", "waiting", "committed")


class RolloutsAnswer(BaseModel):
    """What is decided, and what the open rollout waits for."""

    rollouts: RolloutList
    waits: tuple[WaitAnswer, ...]


class RolloutAnswer(BaseModel):
    """One rollout; its devices are at ``/rollouts/N/devices``."""

    rollout: RolloutDetail
    waits: tuple[WaitAnswer, ...]


class RolloutDevicesAnswer(BaseModel):
    """A page of a rollout's devices."""

    total: int
    page: int
    pages: int
    devices: tuple[RolloutDeviceRow, ...]


class RolloutDevicesQuery(ListQuery):
    """Which devices of a rollout."""

    sort: Literal["stage", "device", "phase"] = "stage"
    phase: Literal["", "waiting", "trial", "committed", "rolled_back", "refused"] = Field(
        "", description="one phase"
    )


class RolloutPages:
    """Their pages and operations.

    Args:
        settings: of the coordinator.
        watch: reads the tables.
        readings: shared by all viewers.
    """

    def __init__(self, settings: CoordinatorSettings, watch: TableWatch, readings: SharedReadings) -> None:
        self._settings = settings
        self._watch = watch
        self._readings = readings

    def part(self) -> ConsolePart:
        """For the application."""
        return ConsolePart(
            routes=[
                Route(_PATH, self._list_page, methods=["GET"]),
                Route(_PATH + "/{rollout:int}", self._page, methods=["GET"]),
            ],
            endpoints=[
                Endpoint(
                    "GET", "/rollouts", "What is rolled out, and was before", RolloutsAnswer, self._list
                ),
                Endpoint(
                    "GET", "/rollouts/{rollout:int}", "One rollout and its gates", RolloutAnswer, self._one
                ),
                Endpoint(
                    "GET",
                    "/rollouts/{rollout:int}/devices",
                    "Devices of a rollout, and the verdict of each",
                    RolloutDevicesAnswer,
                    self._devices,
                    query=RolloutDevicesQuery,
                ),
            ],
            navigation=[NavigationLink(_PATH, "Rollouts")],
        )

    async def _list_page(self, request: Request) -> Response:
        reading = await self._readings.get("rollouts", "list", self._listed)
        picture = self._watch.picture
        found, known = reading.value or (None, frozenset())
        last = found.rollouts[0] if found is not None and found.rollouts else None
        now = None
        if last is not None and last.over is None:
            query = RolloutDevicesQuery()
            read = partial(self._read, path=_path(request, last.number), number=last.number, query=query)
            now = (await self._readings.get("rollouts", (last.number, query), read)).value
        shown = digest(self._seen(), reading.trouble)
        if (same := unchanged(request, shown)) is not None:
            return same
        values: dict[str, Any] = {
            "found": found,
            "known": known,
            "now": now and now[0],
            "trouble": reading.trouble,
        }
        return render(
            request, "rollouts.html", picture=picture, shown=shown, waits_here=self._waits(), **values
        )

    async def _list(self, request: Request) -> RolloutsAnswer:  # noqa: ARG002 - an operation is called with its request
        reading = await self._readings.get("rollouts", "list", self._listed)
        return RolloutsAnswer(rollouts=reading.require()[0], waits=self._wait_answers())

    async def _page(self, request: Request) -> Response:
        query, number = query_of(request, RolloutDevicesQuery), request.path_params["rollout"]
        read = partial(self._read, path=_path(request, number), number=number, query=query)
        reading = await self._readings.get("rollouts", (number, query), read)
        picture = self._watch.picture
        shown = digest(self._seen(), number, query, reading.trouble)
        if (same := unchanged(request, shown)) is not None:
            return same
        if reading.value is None and not reading.trouble:
            raise HTTPException(404, f"rollout {number} is not stored (any more)")
        values: dict[str, Any] = {"one": None, "number": number, "kinds": KINDS, "trouble": reading.trouble}
        if reading.value is not None:
            values["one"], values["list"] = reading.value
        return render(
            request, "rollout.html", picture=picture, shown=shown, waits_here=self._waits(), **values
        )

    async def _one(self, request: Request) -> RolloutAnswer:
        one, _ = await self._require(request, RolloutDevicesQuery())
        return RolloutAnswer(rollout=one, waits=self._wait_answers() if one.open else ())

    async def _devices(self, request: Request) -> RolloutDevicesAnswer:
        _, listing = await self._require(request, query_of(request, RolloutDevicesQuery))
        rows = tuple(listing.rows)
        return RolloutDevicesAnswer(
            total=listing.total, page=listing.number, pages=listing.pages, devices=rows
        )

    async def _require(
        self, request: Request, query: RolloutDevicesQuery
    ) -> tuple[RolloutDetail, Listing[RolloutDeviceRow]]:
        number = request.path_params["rollout"]
        read = partial(self._read, path=_path(request, number), number=number, query=query)
        found = (await self._readings.get("rollouts", (number, query), read)).require()
        if found is None:
            raise HTTPException(404, f"rollout {number} is not stored (any more)")
        return found

    def _seen(self) -> tuple[Any, Any]:
        revisions = self._watch.picture.revisions
        return revisions.get("rollouts"), revisions.get("status")

    def _waits(self) -> list[Any]:
        return [wait for wait in self._watch.picture.waits if wait.what.startswith("rollout")]

    def _wait_answers(self) -> tuple[WaitAnswer, ...]:
        return tuple(WaitAnswer.of(wait, self._watch.picture.wall) for wait in self._waits())

    def _listed(self, store: Database) -> tuple[RolloutList, frozenset[int]]:
        """The list, and which of its versions the registry has: a bundle that was brought has none."""
        found = list_rollouts(self._settings.location, self._settings.rollout.mode)
        return found, known_versions(
            store, {*(one.version for one in found.rollouts), *(one.version for one in found.failed)}
        )

    def _read(
        self, store: Database, path: str, number: int, query: RolloutDevicesQuery
    ) -> tuple[RolloutDetail, Listing[RolloutDeviceRow]] | None:
        """One rollout without its list of devices, and the page of it that was asked for."""
        one = detail(self._settings.location, number, time.time())
        if one is None:
            return None
        wanted = query.q.lower()
        rows = [
            row
            for row in one.devices
            if query.phase in {"", row.phase} and (not wanted or wanted in row.device.lower())
        ]
        if query.sort == "device":
            rows.sort(key=lambda row: row.device)
        elif query.sort == "phase":
            rows.sort(key=lambda row: (_ORDER.index(row.phase), row.device))
        if query.order == "desc":
            rows.reverse()
        listing = Listing(path, query, rows)
        if one.open:
            listing.rows = with_reports(store, listing.rows, one.row.bundles)
        return one.model_copy(update={"devices": ()}), listing


def _path(request: Request, number: int) -> str:
    return f"{base_of(request)}{_PATH}/{number}"
