"""One device: its windows, quality, metrics over time, rounds, refusals, admission and version."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, Role, render
from console.tables.connection import TablesConnection
from console.tables.device_detail import (
    DeviceDetail,
    DeviceLogReadings,
    DeviceLogsAnswer,
    RoundPart,
    read_detail,
)
from console.tables.fleet import FleetMember, FleetPicture, RefusalCount
from console.tables.reader import SharedReader, SharedReading
from console.tables.watch import TableWatch
from console.views.charts import charts_of
from console.views.fleet import PATH, DeviceAnswer
from console.views.paging import content_of, unchanged
from coordinator.admission.quarantine import OffenceRecord
from coordinator.identity.store import DeviceRow
from protocol.errors import LichenError, Reason, Refused

TasksOfDevice = Callable[[str], Awaitable[tuple[str | None, ...]]]
"""Names of the tasks that a device takes part in, None for the main one; empty if the fleet has one task."""
_FRESH_S: Final = 1.0
"""Viewers of the same device within this time share what was read."""
_HELD: Final = 64
_CLASSES: Final = 50
"""Classes shown in the table of windows."""


class RoundPartAnswer(BaseModel):
    """See :class:`console.tables.device_detail.RoundPart`."""

    round: int
    wall: float
    size: int | None
    outcome: str
    why: str
    metrics: dict[str, float]

    @classmethod
    def of(cls, one: RoundPart) -> "RoundPartAnswer":
        """A round of a device."""
        return cls(
            round=one.round,
            wall=one.wall,
            size=one.size,
            outcome=one.outcome,
            why=one.why,
            metrics=dict(one.metrics),
        )


class RefusalAnswer(BaseModel):
    """Refused messages of a device for one reason; ``wall``: of the last one, Unix seconds."""

    device: str
    reason: str
    count: int
    detail: str
    wall: float

    @classmethod
    def of(cls, one: RefusalCount) -> "RefusalAnswer":
        """A row of the table."""
        return cls(device=one.device, reason=one.reason, count=one.count, detail=one.detail, wall=one.wall)


class QuarantineAnswer(BaseModel):
    """Times in Unix seconds; ``times``: quarantines so far."""

    device: str
    since: float
    until: float
    times: int
    reason: str

    @classmethod
    def of(cls, device: str, one: OffenceRecord) -> "QuarantineAnswer":
        """A device's record."""
        return cls(device=device, since=one.since, until=one.until, times=one.level, reason=one.reason)


class CertificateAnswer(BaseModel):
    """A device in the identity store; times in Unix seconds, ``key``: SHA-256 of its public key."""

    device: str
    status: str
    key: str
    serial: str | None
    until: float | None
    enrolled: float | None

    @classmethod
    def of(cls, row: DeviceRow) -> "CertificateAnswer":
        """A row of the store."""
        return cls(
            device=row.name,
            status=row.status,
            key=row.key,
            serial=row.serial,
            until=row.not_after,
            enrolled=row.enrolled_wall,
        )


class DeviceDetailAnswer(BaseModel):
    """One device.

    ``windows``: by modality, then by class. ``classes``: their labels. ``history``: ``at`` (Unix seconds)
    and columns of the same length. ``quarantine``: None: it is in none. ``certificate``: None: not enrolled.
    ``tasks``: that it takes part in, null for the main one; empty if the fleet has one task.
    """

    read_wall: float
    trouble_of_tables: str
    device: DeviceAnswer
    classes: tuple[str, ...]
    windows: dict[str, tuple[int, ...]]
    metrics: dict[str, float]
    history: dict[str, list[float | None]]
    rounds: tuple[RoundPartAnswer, ...]
    refusals: tuple[RefusalAnswer, ...]
    quarantine: QuarantineAnswer | None
    certificate: CertificateAnswer | None
    tasks: tuple[str | None, ...]


class OneDevice:
    """Its page and its operations.

    Args:
        watch: whether the coordinator runs.
        fleet: reads all devices.
        tables: for what only this page reads.
        logs: log lines of devices, for operators.
        tasks_of: finds the tasks that a device takes part in.
    """

    def __init__(
        self,
        watch: TableWatch,
        fleet: SharedReader[FleetPicture],
        tables: TablesConnection,
        logs: DeviceLogReadings,
        tasks_of: TasksOfDevice,
    ) -> None:
        self._logs = logs
        self._tasks_of = tasks_of
        self._watch = watch
        self._fleet = fleet
        self._tables = tables
        self._held: OrderedDict[str, tuple[float, DeviceDetail]] = OrderedDict()

    def part(self) -> ConsolePart:
        """For the application."""
        path = PATH + "/{device}"
        return ConsolePart(
            routes=[Route(path, self._page, methods=["GET"])],
            endpoints=[
                Endpoint("GET", path, "One device", DeviceDetailAnswer, self._answer),
                Endpoint(
                    "GET",
                    f"{path}/logs",
                    "The last log lines of a device that an operator asked for",
                    DeviceLogsAnswer,
                    self._last_logs,
                    Role.OPERATOR,
                ),
            ],
        )

    async def _detail(self, device: str) -> tuple[DeviceDetail, str]:
        """What the tables have of it, and why they cannot be read now."""
        at, held = self._held.get(device, (float("-inf"), DeviceDetail()))
        if time.monotonic() - at <= _FRESH_S:
            return held, ""
        try:
            found = await asyncio.to_thread(self._tables.read, lambda store: read_detail(store, device))
        except LichenError as error:
            return held, str(error)
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
        ) as error:  # rows that another release wrote
            return held, f"its rows in the tables are not as expected: {error!r}"[:500]
        self._held[device] = time.monotonic(), found
        self._held.move_to_end(device)
        while len(self._held) > _HELD:
            self._held.popitem(last=False)
        return found, ""

    async def _found(
        self, request: Request
    ) -> tuple[SharedReading[FleetPicture], FleetMember, DeviceDetail, str]:
        device = request.path_params["device"]
        reading = await self._fleet.newest()
        if reading.value is None:
            detail, trouble = DeviceDetail(), reading.trouble
            raise Refused(Reason.FULL, trouble or "the tables have not been read yet")
        member = reading.value.by_name.get(device)
        if member is None:
            raise Refused(Reason.UNKNOWN_DEVICE, f"no device {device[:80]!r} is known (any more)")
        detail, trouble = await self._detail(device)
        return reading, member, detail, reading.trouble or trouble

    async def _page(self, request: Request) -> Response:
        status = self._watch.picture
        try:
            reading, one, detail, trouble = await self._found(request)
        except Refused as refused:
            # A region that is already shown is replaced only by an answer without an error.
            code = 404 if refused.reason is Reason.UNKNOWN_DEVICE else 503
            code = 200 if "hx-request" in request.headers else code
            return render(request, "device_absent.html", status=code, picture=status, words=refused.detail)
        picture = reading.value
        assert picture is not None  # noqa: S101 - _found raises then
        certificate = picture.identities.devices.get(one.name)
        conduct = picture.quarantine.get(one.name)
        logs = await self._logs.get(one.name) if request.state.viewer.role >= Role.OPERATOR else None
        tasks = await self._tasks_of(one.name)
        state = (status.trouble, status.status.get("running"), trouble)
        shown = content_of(request, one, detail, certificate, conduct, state, logs, tasks)
        if (same := unchanged(request, shown)) is not None:
            return same
        return render(
            request,
            "device.html",
            picture=status,
            reading=SharedReading(reading.wall, picture, trouble),
            one=one,
            detail=detail,
            certificate=certificate,
            conduct=conduct,
            windows=_windows(picture, detail),
            charts=charts_of(detail.history),
            logs=logs,
            tasks_of_it=tasks,
            shown=shown,
        )

    async def _last_logs(self, request: Request) -> DeviceLogsAnswer:
        _, one, _, _ = await self._found(request)
        return (await self._logs.get(one.name)).require()

    async def _answer(self, request: Request) -> DeviceDetailAnswer:
        reading, one, detail, trouble = await self._found(request)
        picture = reading.value
        assert picture is not None  # noqa: S101 - _found raises then
        certificate = picture.identities.devices.get(one.name)
        conduct = picture.quarantine.get(one.name)
        state = detail.state
        return DeviceDetailAnswer(
            read_wall=reading.wall,
            trouble_of_tables=trouble,
            device=DeviceAnswer.of(one),
            classes=() if picture.task is None else tuple(picture.task.labels),
            windows={} if state is None else {name: part.windows for name, part in state.modalities.items()},
            metrics=dict(detail.report),
            history={name: list(column) for name, column in detail.history.items()},
            rounds=tuple(RoundPartAnswer.of(part) for part in detail.rounds),
            refusals=tuple(RefusalAnswer.of(row) for row in detail.refusals),
            quarantine=None if conduct is None else QuarantineAnswer.of(one.name, conduct),
            certificate=None if certificate is None else CertificateAnswer.of(certificate),
            tasks=await self._tasks_of(one.name),
        )


def _windows(picture: FleetPicture, detail: DeviceDetail) -> dict[str, object]:
    """The table of windows: a row for each class, a column for each modality."""
    modalities = {} if detail.state is None else dict(sorted(detail.state.modalities.items()))
    count = max((len(one.windows) for one in modalities.values()), default=0)
    labels = () if picture.task is None else picture.task.labels
    rows = [
        (
            labels[k] if k < len(labels) else ("all" if count == 1 else f"class {k}"),
            [one.windows[k] if k < len(one.windows) else 0 for one in modalities.values()],
        )
        for k in range(min(count, _CLASSES))
    ]
    return {"modalities": list(modalities), "rows": rows, "more": max(0, count - _CLASSES)}
