"""The first page: where the coordinator stands, and what it waits for."""

import time
from functools import partial
from typing import Any, Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, render
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.paging import unchanged
from console.words import digest, metric
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.status.rollout_records import RolloutDetail
from coordinator.status.rollouts import detail, list_rollouts
from coordinator.status.rounds import list_rounds
from coordinator.status.versions import Curves, VersionRow, list_versions, read_curves
from coordinator.storage.database import Database
from runtime.waits import Wait
from runtime.web.events import EventStream

_LOOKED_AT: Final = 20
"""Of so many versions the newest that is evaluated is shown."""
_RECENT: Final = 4


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
        settings: of the coordinator.
        watch: reads the tables.
        readings: shared by all viewers.
        events: its events.
    """

    def __init__(
        self, settings: CoordinatorSettings, watch: TableWatch, readings: SharedReadings, events: EventStream
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._readings = readings
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
            assets=["console"],
        )

    async def _page(self, request: Request) -> Response:
        versions = await self._readings.get("versions", "overview", _newest)
        open_ = await self._readings.get("rollouts", "overview", self._rollout)
        recent = await self._readings.get("rounds", "overview", partial(list_rounds, skip=0, count=_RECENT))
        picture = self._watch.picture
        shown = digest([picture.revisions.get(name) for name in ("status", "rounds", "versions", "rollouts")])
        if (same := unchanged(request, shown)) is not None:
            return same
        mode = self._settings.rollout.mode
        values: dict[str, Any] = {"newest": None, "curve": None, "rollout": open_.value, "mode": mode}
        values["recent"] = recent.value or []
        if versions.value is not None:
            values["newest"], values["before"], curves = versions.value
            values["curve"] = _curve(curves)
            values["words"] = f"{' and '.join(list(curves.scores)[:2])} of the versions"
        return render(request, "overview.html", picture=picture, shown=shown, **values)

    def _rollout(self, store: Database) -> RolloutDetail | None:
        """The last rollout, without its list of devices."""
        del store
        course = list_rollouts(self._settings.location, self._settings.rollout.mode)
        if not course.rollouts:
            return None
        found = detail(self._settings.location, course.rollouts[0].number, time.time())
        return None if found is None else found.model_copy(update={"devices": ()})

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


def _newest(store: Database) -> tuple[VersionRow, dict[str, float], Curves] | None:
    """The newest version that is evaluated, the metrics before it, and all curves; None: there is none."""
    rows = list_versions(store, 0, _LOOKED_AT)
    if not rows:
        return None
    judged = [row for row in rows if row.metrics]
    before = judged[1].metrics if len(judged) > 1 else {}
    return (judged or rows)[0], before, read_curves(store)


def _curve(curves: Curves) -> dict[str, Any] | None:
    """The first two scores, small."""
    names = [name for name, values in curves.scores.items() if any(v is not None for v in values)][:2]
    if not names or len(curves.versions) < 2:  # noqa: PLR2004 - one version is no curve
        return None
    values = {name: [None if v is None else round(v, 4) for v in curves.scores[name]] for name in names}
    known = [v for one in values.values() for v in one if v is not None]
    return {
        "x": curves.versions,
        "series": [{"name": metric(name), "values": values[name]} for name in names],
        "label": "version",
        "height": 250,
        "min": 0.5 if min(known) >= 0.5 else 0,  # noqa: PLR2004 - the upper half of the scores
        "max": 1,
    }
