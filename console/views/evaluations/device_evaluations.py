"""The page of what devices found about a version on their held-back windows."""

from functools import partial
from typing import Any, Final

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, base_of, render
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.paging import Listing, ListQuery, query_of, unchanged
from console.words import digest
from coordinator.evaluations import store as evaluations
from coordinator.status.versions import read_version
from coordinator.storage.database import Database
from protocol.tasks.task import Task

_ROWS: Final = 50


class EvaluationAnswer(BaseModel):
    """One version on devices, beside the coordinator's own metrics.

    Attributes:
        own: metrics of the coordinator's evaluation; empty: it has none.
        devices: how many reported.
        windows: held-back windows of them.
        targets: scores by target and class.
        by_modalities: the same targets by the modalities that the model read.
        of_devices: a page of the devices, by name.
    """

    version: int
    own: dict[str, float]
    devices: int
    windows: int
    targets: dict[str, Any]
    by_modalities: dict[str, Any]
    windows_by_modalities: dict[str, int]
    page: int
    pages: int
    of_devices: tuple[dict[str, Any], ...]


class DeviceEvaluationPages:
    """Its page and operation.

    Args:
        watch: reads the tables.
        readings: shared by all viewers.
    """

    def __init__(self, watch: TableWatch, readings: SharedReadings) -> None:
        self._watch = watch
        self._readings = readings

    def part(self) -> ConsolePart:
        """For the application."""
        path, words = "/versions/{version:int}/evaluation", "One version on devices' held-back windows"
        return ConsolePart(
            routes=[Route(path, self._page, methods=["GET"])],
            endpoints=[Endpoint("GET", path, words, EvaluationAnswer, self._one, query=ListQuery)],
        )

    async def _page(self, request: Request) -> Response:
        number, query = request.path_params["version"], query_of(request, ListQuery)
        key, ask = (
            (number, query.page),
            partial(_found, base=base_of(request), number=number, page=query.page),
        )
        reading = await self._readings.get("evaluations", key, ask)
        picture = self._watch.picture
        seen = picture.revisions.get("evaluations"), bool(picture.status.get("running"))
        shown = digest(seen, number, query, reading.trouble)
        if (same := unchanged(request, shown)) is not None:
            return same
        if reading.value is None and not reading.trouble:
            raise HTTPException(404, f"version {number} is not in the history")
        listing, one = reading.value or (None, None)
        values = {"number": number, "listing": listing, "one": one, "trouble": reading.trouble}
        return render(request, "evaluation.html", picture=picture, shown=shown, **values)

    async def _one(self, request: Request) -> EvaluationAnswer:
        number, query = request.path_params["version"], query_of(request, ListQuery)
        key, ask = (
            (number, query.page),
            partial(_found, base=base_of(request), number=number, page=query.page),
        )
        found = (await self._readings.get("evaluations", key, ask)).require()
        if found is None:
            raise HTTPException(404, f"version {number} is not in the history")
        return found[1]


def _found(
    store: Database, base: str, number: int, page: int
) -> tuple[Listing[int], EvaluationAnswer] | None:
    known = store.get_meta("task")
    task = None if known is None else Task.model_validate_json(known)
    own = read_version(store, number)
    if task is None or own is None:
        return None
    nothing: dict[str, Any] = {"devices": 0, "windows": 0, "targets": {}}
    nothing |= {"by_modalities": {}, "windows_by_modalities": {}}
    one = evaluations.read(store, task, [number]).get(number, nothing)
    address = f"{base}/versions/{number}/evaluation"
    listing = Listing(address, ListQuery(page=page), range(evaluations.count_rows(store, number)), _ROWS)
    skip = max(0, listing.first - 1)
    rows = evaluations.of_devices(store, task, number, skip=skip, limit=len(listing.rows))
    answer = EvaluationAnswer(
        version=number,
        own=dict(own.row.metrics),
        devices=one["devices"],
        windows=one["windows"],
        targets=one["targets"],
        by_modalities=one["by_modalities"],
        windows_by_modalities=one["windows_by_modalities"],
        page=listing.number,
        pages=listing.pages,
        of_devices=tuple(rows),
    )
    return listing, answer
