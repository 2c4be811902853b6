"""Everything that the tables have about one device, by a few look-ups whatever the size of the fleet."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from pydantic import BaseModel, ValidationError

from console.tables.fleet import RefusalCount
from console.tables.shared_readings import SharedReadings, SubjectReading
from coordinator.diagnosis import device_logs
from coordinator.diagnosis.device_logs import LogAnswer
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import names_in
from coordinator.storage.location import Location
from protocol.log_lines import LogLine
from protocol.messages import State
from runtime.text import one_line

ROUNDS: Final = 50
"""The newest rounds that are looked at."""
_ATTEMPTS: Final = 100
_REFUSALS: Final = 100
_LOGS_S: Final = 15.0
"""Time alone ends a question, and removes an answer: log lines are read again so often."""


@dataclass(frozen=True, slots=True)
class RoundPart:
    """What a device did in a round.

    Attributes:
        round: its number.
        wall: when its update was accepted, or the attempt opened; Unix seconds.
        size: of its update, bytes; None: it sent none.
        outcome: in words.
        kind: ``good``, ``warn`` or ``bad``.
        why: why it was selected; empty if that is not known.
        metrics: that it reported with its update, or of its own model afterwards.
    """

    round: int
    wall: float
    size: int | None
    outcome: str
    kind: str
    why: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceDetail:
    """One device. Times in Unix seconds.

    Attributes:
        state: its last one; None: none, or its row is damaged.
        report: the newest metrics about itself, by name.
        report_wall: when they came.
        history: columns of the same length; ``at`` and one for each metric.
        refusals: by reason, the newest first.
        rounds: the newest first.
    """

    state: State | None = None
    report: Mapping[str, float] = field(default_factory=dict)
    report_wall: float | None = None
    history: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    refusals: tuple[RefusalCount, ...] = ()
    rounds: tuple[RoundPart, ...] = ()


def read_detail(store: Database, device: str) -> DeviceDetail:
    """A device; an empty one if the tables have nothing of it."""
    told = _one(store, schema.telemetry, device)
    history = _one(store, schema.telemetry_history, device)
    table = schema.refusals
    refusals = sa.select(table).where(table.c.device == device).order_by(table.c.last_wall.desc())
    return DeviceDetail(
        state=_state(_one(store, schema.devices, device)),
        report={} if told is None else dict(told["report"]),
        report_wall=None if told is None else told["wall"],
        history={} if history is None else dict(history["history"].get("columns", {})),
        refusals=tuple(
            RefusalCount(device, row["reason"], int(row["count"]), row["last_detail"], row["last_wall"])
            for row in store.rows(refusals.limit(_REFUSALS))
        ),
        rounds=_rounds(store, device),
    )


def _one(store: Database, table: sa.Table, device: str) -> dict[str, Any] | None:
    found = store.rows(sa.select(table).where(table.c.device == device))
    return found[0] if found else None


def _state(row: dict[str, Any] | None) -> State | None:
    try:
        return None if row is None else State.model_validate(row["state"])
    except ValidationError:
        return None


def _rounds(store: Database, device: str) -> tuple[RoundPart, ...]:
    """By round, as the key begins with it: a look-up each, and no scan."""
    attempts, updates = schema.attempts, schema.updates
    last = max(_newest(store, attempts.c.round), _newest(store, updates.c.round))
    rounds = list(range(max(0, last - ROUNDS + 1), last + 1))
    versions = schema.versions.c.version
    made = {row["version"] for row in store.rows(sa.select(versions).where(versions.in_(rounds)))}
    reported = schema.device_metrics
    local = sa.select(reported).where(reported.c.round.in_(rounds), reported.c.device == device)
    metrics = {row["round"]: row["metrics"] for row in store.rows(local)}
    columns = (updates.c.round, updates.c.wall, updates.c.size, updates.c.lost, updates.c.header)
    sent = sa.select(*columns).where(updates.c.round.in_(rounds), updates.c.device == device)
    found = {
        row["round"]: _accepted(row, metrics.get(row["round"], {}), folded=row["round"] in made)
        for row in store.rows(sent)
    }
    tried = sa.select(attempts).where(attempts.c.round.in_(rounds))
    order = tried.order_by(attempts.c.round.desc(), attempts.c.attempt.desc()).limit(_ATTEMPTS)
    for row in store.rows(order):
        why = row["why"].get(device) if isinstance(row["why"], dict) else None
        if row["round"] not in found and (why is not None or device in names_in(row["selected"])):
            found[row["round"]] = _selected(row, one_line(str(why or ""), 300))
    return tuple(found[number] for number in sorted(found, reverse=True))


def _newest(store: Database, column: sa.Column[Any]) -> int:
    return int(store.rows(sa.select(sa.func.max(column).label("last")))[0]["last"] or 0)


def _accepted(row: dict[str, Any], local: Mapping[str, float], *, folded: bool) -> RoundPart:
    number, header = row["round"], row["header"]
    told = header.get("metrics", {}) if isinstance(header, dict) else {}
    values = {**told, **local}
    metrics = {str(name): float(one) for name, one in values.items() if isinstance(one, int | float)}
    if row["lost"]:
        outcome, kind = f"accepted, but not folded: {one_line(row['lost'], 300)}", "bad"
    elif folded:
        outcome, kind = f"folded into version {number}", "good"
    else:
        outcome, kind = "accepted; the round is not over", "warn"
    return RoundPart(number, row["wall"], row["size"], outcome, kind, "", metrics)


def _selected(row: dict[str, Any], why: str) -> RoundPart:
    if row["closed_wall"] is None:
        return RoundPart(row["round"], row["opened_wall"], None, "selected; no update yet", "warn", why)
    outcome = f"selected, sent no update; {one_line(row['outcome'], 200)}".rstrip("; ")
    return RoundPart(row["round"], row["opened_wall"], None, outcome, "bad", why)


class DeviceLogsAnswer(BaseModel):
    """The newest log lines of a device that an operator asked for; times in Unix seconds.

    ``asked``: None: nobody asked within a day. ``waits``: an answer to that may come yet. ``answered``: when
    the rest came. ``refused``: why it sends none. ``earlier``: how many lines before these it did not send.
    """

    device: str
    asked: float | None = None
    waits: bool = False
    answered: float | None = None
    refused: str = ""
    earlier: int = 0
    lines: tuple[LogLine, ...] = ()

    @classmethod
    def of(cls, device: str, found: LogAnswer | None) -> "DeviceLogsAnswer":
        """What is known of a device."""
        if found is None:
            return cls(device=device)
        asked = {"asked": found.asked, "waits": found.waits, "answered": found.answered}
        if found.lines is None:
            return cls(device=device, **asked)
        sent = found.lines
        return cls(device=device, **asked, refused=sent.refused or "", earlier=sent.earlier, lines=sent.lines)


class DeviceLogReadings:
    """Answers of devices, each read once for all operators.

    Args:
        location: of their tables.
        readings: shared by all viewers.
    """

    def __init__(self, location: Location, readings: SharedReadings) -> None:
        self._location = location
        self._readings = readings

    async def get(self, device: str) -> SubjectReading[DeviceLogsAnswer]:
        """The newest answer of a device."""
        now = time.time()

        def read(_store: Database) -> DeviceLogsAnswer:
            return DeviceLogsAnswer.of(device, device_logs.read(self._location, device, now))

        return await self._readings.get("device-logs", (device, now // _LOGS_S), read)
