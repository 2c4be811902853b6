"""The pages of rounds: which were opened, how each went, and what became of its devices."""

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
from coordinator.aggregation.device_weights import shares
from coordinator.secure_aggregation.report import SecureReport
from coordinator.status.round_records import (
    AttemptRow,
    DeviceStatus,
    DeviceUpdate,
    RoundDetail,
    RoundDevice,
    RoundRow,
    RoundStep,
)
from coordinator.status.rounds import count_rounds, list_rounds, read_round, read_updates
from coordinator.storage.database import Database

_PATH: Final = "/rounds"
_ROWS: Final = 25
_WEIGHTS: Final = 100
STATUSES: Final = {
    "delivered": ("good", "delivered"),
    "awaited": ("", "awaited"),
    "missing": ("warn", "did not deliver"),
    "refused": ("bad", "refused"),
}
"""Of a device in a round: kind of tag, and words."""


class RoundsAnswer(BaseModel):
    """A page of the list, the newest round first; ``total``: rounds of the history."""

    total: int
    page: int
    pages: int
    rounds: tuple[RoundRow, ...]


class DeviceWeightAnswer(BaseModel):
    """The weight of a device in the fold of a part; ``share`` 1 is an equal share."""

    part: str
    device: str
    share: float
    weight: float


class RoundAnswer(BaseModel):
    """One round.

    ``waits``: of an open one; ``counts``: devices by status; ``weights``: of a method that weighs devices,
    the lightest first; ``secure``: of a secure round, how each attempt stands, and who was lost at which
    stage.
    """

    round: RoundRow
    open: bool
    phase: str
    quorum: int | None
    attempts: tuple[AttemptRow, ...]
    steps: tuple[RoundStep, ...]
    counts: dict[DeviceStatus, int]
    update_bytes: int
    weights: tuple[DeviceWeightAnswer, ...]
    warnings: tuple[str, ...]
    waits: tuple[WaitAnswer, ...]
    secure: tuple[SecureReport, ...] = ()


class DeviceInRound(BaseModel):
    """A device of a round; ``update``: what came with its update."""

    device: str
    status: DeviceStatus
    why: str
    refusal: str
    wall: float | None
    size: int | None
    update: DeviceUpdate | None


class RoundDevicesAnswer(BaseModel):
    """A page of a round's devices."""

    total: int
    page: int
    pages: int
    devices: tuple[DeviceInRound, ...]


class RoundDevicesQuery(ListQuery):
    """Which devices of a round."""

    sort: Literal["device", "arrived", "size"] = "device"
    status: Literal["", "delivered", "awaited", "missing", "refused"] = Field("", description="one status")


class RoundPages:
    """Their pages and operations.

    Args:
        watch: reads the tables.
        readings: shared by all viewers.
    """

    def __init__(self, watch: TableWatch, readings: SharedReadings) -> None:
        self._watch = watch
        self._readings = readings

    def part(self) -> ConsolePart:
        """For the application."""
        return ConsolePart(
            routes=[
                Route(_PATH, self._list_page, methods=["GET"]),
                Route(_PATH + "/{round:int}", self._page, methods=["GET"]),
            ],
            endpoints=[
                Endpoint("GET", _PATH, "Rounds, the newest first", RoundsAnswer, self._list, query=ListQuery),
                Endpoint("GET", "/rounds/{round:int}", "One round", RoundAnswer, self._one),
                Endpoint(
                    "GET",
                    "/rounds/{round:int}/devices",
                    "Devices of a round, and what came of each",
                    RoundDevicesAnswer,
                    self._devices,
                    query=RoundDevicesQuery,
                ),
            ],
            navigation=[NavigationLink(_PATH, "Rounds")],
        )

    async def _list_page(self, request: Request) -> Response:
        query = query_of(request, ListQuery)
        read = partial(_listed, path=base_of(request) + _PATH, page=query.page)
        reading = await self._readings.get("rounds", ("list", query.page), read)
        picture = self._watch.picture
        shown = digest(_seen(picture.revisions), query, reading.trouble)
        if (same := unchanged(request, shown)) is not None:
            return same
        trouble = reading.trouble or picture.trouble
        return render(
            request, "rounds.html", picture=picture, found=reading.value, shown=shown, trouble=trouble
        )

    async def _list(self, request: Request) -> RoundsAnswer:
        query = query_of(request, ListQuery)
        read = partial(_listed, path=base_of(request) + _PATH, page=query.page)
        reading = await self._readings.get("rounds", ("list", query.page), read)
        listing, rows = reading.require()
        return RoundsAnswer(total=listing.total, page=listing.number, pages=listing.pages, rounds=tuple(rows))

    async def _page(self, request: Request) -> Response:
        query, number = query_of(request, RoundDevicesQuery), request.path_params["round"]
        read = partial(_read, path=f"{base_of(request)}{_PATH}/{number}", number=number, query=query)
        reading = await self._readings.get("rounds", (number, query), read)
        picture = self._watch.picture
        shown = digest(_seen(picture.revisions), query, reading.trouble)
        if (same := unchanged(request, shown)) is not None:
            return same
        if reading.value is None and not reading.trouble:
            raise HTTPException(404, f"round {number} is not in the history")
        values: dict[str, Any] = {"number": number, "statuses": STATUSES, "trouble": reading.trouble}
        if reading.value is not None:
            one, listing, updates = reading.value
            values |= {"one": one, "list": listing, "updates": updates, "weights": _weights(one)}
            values["curve"] = _curve(one)
        else:
            values["one"] = None
        return render(request, "round.html", picture=picture, shown=shown, **values)

    async def _one(self, request: Request) -> RoundAnswer:
        number, query = request.path_params["round"], RoundDevicesQuery()
        read = partial(_read, path=f"{base_of(request)}{_PATH}/{number}", number=number, query=query)
        reading = await self._readings.get("rounds", (number, query), read)
        found, picture = reading.require(), self._watch.picture
        if found is None:
            raise HTTPException(404, f"round {number} is not in the history")
        one = found[0]
        given = one.model_dump(
            include={"open", "phase", "quorum", "attempts", "steps", "counts", "update_bytes", "secure"}
        )
        waits = picture.waits if one.open else ()
        return RoundAnswer.model_validate(
            {
                **given,
                "round": one.row.model_dump(),
                "weights": _weights(one),
                "warnings": () if one.weighing is None else one.weighing["warnings"],
                "waits": [wait.as_json(picture.wall) for wait in waits],
            }
        )

    async def _devices(self, request: Request) -> RoundDevicesAnswer:
        query, number = query_of(request, RoundDevicesQuery), request.path_params["round"]
        read = partial(_read, path=f"{base_of(request)}{_PATH}/{number}", number=number, query=query)
        reading = await self._readings.get("rounds", (number, query), read)
        found = reading.require()
        if found is None:
            raise HTTPException(404, f"round {number} is not in the history")
        _, listing, updates = found
        return RoundDevicesAnswer(
            total=listing.total,
            page=listing.number,
            pages=listing.pages,
            devices=tuple(
                DeviceInRound(**one.model_dump(), update=updates.get(one.device)) for one in listing.rows
            ),
        )


def _seen(revisions: Any) -> tuple[Any, Any]:
    return revisions.get("rounds"), revisions.get("status")


def _listed(store: Database, path: str, page: int) -> tuple[Listing[int], list[RoundRow]]:
    listing = Listing(path, ListQuery(page=page), range(count_rounds(store)), _ROWS)
    return listing, list_rounds(store, max(0, listing.first - 1), len(listing.rows))


def _read(
    store: Database, path: str, number: int, query: RoundDevicesQuery
) -> tuple[RoundDetail, Listing[RoundDevice], dict[str, DeviceUpdate]] | None:
    """One round without its list of devices, and the page of it that was asked for."""
    one = read_round(store, number)
    if one is None:
        return None
    wanted = query.q.lower()
    rows = [
        row
        for row in one.devices
        if query.status in {"", row.status} and (not wanted or wanted in row.device.lower())
    ]
    if query.sort == "arrived":
        rows.sort(key=lambda row: (row.wall is None, row.wall or 0.0))
    elif query.sort == "size":
        rows.sort(key=lambda row: row.size or 0)
    if query.order == "desc":
        rows.reverse()
    listing = Listing(path, query, rows)
    updates = read_updates(store, number, [row.device for row in listing.rows if row.wall is not None])
    return one.model_copy(update={"devices": ()}), listing, updates


def _weights(one: RoundDetail) -> list[dict[str, Any]]:
    if one.weighing is None:
        return []
    weights = one.weighing["weights"]
    return [
        {"part": part, "device": device, "share": share, "weight": weights[part][device]}
        for part, device, share in list(shares(weights))[:_WEIGHTS]
    ]


def _curve(one: RoundDetail) -> dict[str, Any] | None:
    """Updates over the seconds since the opening, and the quorum."""
    if len(one.curve) < 2:  # noqa: PLR2004 - the opening alone is no curve
        return None
    series: list[dict[str, Any]] = [{"name": "updates", "values": [count for _, count in one.curve]}]
    if one.quorum is not None:
        series.append({"name": "quorum", "values": [one.quorum] * len(one.curve), "dashed": True})
    return {
        "x": [second for second, _ in one.curve],
        "series": series,
        "label": "seconds since the opening",
        "height": 200,
        "min": 0,
        "max": max(one.quorum or 1, one.curve[-1][1]),
        "fraction": True,
    }
