"""Rounds for pages: a part of the list, and one round with its devices, each from a few bounded queries."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import sqlalchemy as sa

from coordinator.aggregation.secure.reports import reports_of
from coordinator.round_machine.closing import needed
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.round_machine.queries import replay
from coordinator.status.round_records import (
    AttemptRow,
    DeviceStatus,
    DeviceUpdate,
    RoundDetail,
    RoundDevice,
    RoundRow,
    RoundStep,
    StepKind,
)
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import count_in, names_in

_MAX_CURVE: Final = 200
"""Points of the curve of arrivals."""


def count_rounds(store: Database) -> int:
    """How many rounds the history has."""
    rounds = schema.attempts.c.round
    return int(store.rows(sa.select(sa.func.count(rounds.distinct()).label("count")))[0]["count"])


def list_rounds(store: Database, skip: int, count: int) -> list[RoundRow]:
    """Rounds, the newest first.

    Args:
        store: the tables.
        skip: so many of the newest.
        count: at most so many.
    """
    rounds = schema.attempts.c.round
    query = sa.select(rounds).group_by(rounds).order_by(rounds.desc()).offset(skip).limit(count)
    return _rows(store, [row["round"] for row in store.rows(query)])


def _rows(store: Database, numbers: Sequence[int]) -> list[RoundRow]:
    attempts, updates, versions = schema.attempts, schema.updates, schema.versions
    # Where names are compressed, their text is long: the count beside it says enough.
    listed = attempts.c.selected["count"].as_integer()
    counted = sa.case((listed.is_not(None), listed), else_=sa.func.json_array_length(attempts.c.selected))
    told = (attempts.c.round, attempts.c.attempt, attempts.c.opened_wall, attempts.c.closed_wall)
    query = sa.select(*told, attempts.c.outcome, attempts.c.policy, counted.label("selected"))
    query = query.where(attempts.c.round.in_(numbers)).order_by(attempts.c.round, attempts.c.attempt)
    tried: dict[int, list[dict[str, Any]]] = {}
    for row in store.rows(query):
        tried.setdefault(row["round"], []).append(row)
    here = sa.select(updates.c.round, sa.func.count().label("count")).where(updates.c.round.in_(numbers))
    delivered = {row["round"]: row["count"] for row in store.rows(here.group_by(updates.c.round))}
    wanted = {*numbers, *(number - 1 for number in numbers)}
    made = sa.select(
        versions.c.version,
        versions.c.wall,
        versions.c.metrics,
        versions.c.trouble,
        versions.c.bytes_up,
        versions.c.bytes_down,
        sa.func.json_array_length(versions.c.devices).label("folded"),
    )
    known = {row["version"]: row for row in store.rows(made.where(versions.c.version.in_(wanted)))}
    secure = {number: reports[-1].phase for number, reports in reports_of(store, numbers).items()}
    rows = [_row(number, tried[number], delivered.get(number, 0), known) for number in numbers]
    return [row.model_copy(update={"secure": secure.get(row.round, "")}) for row in rows]


def _row(
    number: int, tried: Sequence[Mapping[str, Any]], delivered: int, versions: Mapping[int, Mapping[str, Any]]
) -> RoundRow:
    version, before, last = versions.get(number), versions.get(number - 1), tried[-1]

    def since(key: str) -> int | None:
        return None if version is None or before is None else version[key] - before[key]

    return RoundRow(
        round=number,
        attempts=last["attempt"],
        policy=last["policy"],
        outcome=last["outcome"],
        opened_wall=tried[0]["opened_wall"],
        closed_wall=last["closed_wall"],
        selected=int(last["selected"] or 0),
        delivered=delivered,
        folded=None if version is None else version["folded"],
        version_wall=None if version is None else version["wall"],
        bytes_up=since("bytes_up"),
        bytes_down=since("bytes_down"),
        metrics={} if version is None else version["metrics"],
        trouble="" if version is None else version["trouble"],
    )


def read_round(store: Database, number: int) -> RoundDetail | None:
    """One round; None: the history does not have it."""
    attempts, updates, weighings = schema.attempts, schema.updates, schema.weighings
    tried = store.rows(sa.select(attempts).where(attempts.c.round == number).order_by(attempts.c.attempt))
    if not tried:
        return None
    [row] = _rows(store, [number])
    came = store.rows(
        sa.select(updates.c.device, updates.c.size, updates.c.wall, updates.c.lost)
        .where(updates.c.round == number)
        .order_by(updates.c.wall, updates.c.device)
    )
    state, rules = replay(store.journal())
    ours = state if state.round == number else None
    open_ = ours is not None and ours.phase in {RoundPhase.WAITING, RoundPhase.COLLECTING}
    devices = _devices(tried, came, ours, open_=open_)
    quorum = None if rules is None or not row.selected else needed(rules, row.selected)
    sound = [one["wall"] for one in came if not one["lost"]]
    counts: dict[DeviceStatus, int] = {"delivered": 0, "awaited": 0, "missing": 0, "refused": 0}
    for one in devices:
        counts[one.status] += 1
    edges = sa.select(
        sa.func.min(attempts.c.round).label("first"), sa.func.max(attempts.c.round).label("last")
    )
    weighed = store.rows(sa.select(weighings).where(weighings.c.round == number))
    return RoundDetail(
        row=row,
        open=open_,
        phase=ours.phase.value if ours is not None else "over",
        quorum=quorum,
        attempts=tuple(AttemptRow(**{**one, "selected": count_in(one["selected"])}) for one in tried),
        steps=tuple(_steps(store, row, tried, sound, quorum)),
        devices=devices,
        counts=counts,
        update_bytes=sum(one["size"] for one in came),
        curve=_curve(sound, row.opened_wall),
        weighing=weighed[0] if weighed else None,
        secure=reports_of(store, [number]).get(number, ()),
        **store.rows(edges)[0],
    )


def _devices(
    tried: Sequence[Mapping[str, Any]],
    came: Sequence[Mapping[str, Any]],
    state: RoundState | None,
    *,
    open_: bool,
) -> tuple[RoundDevice, ...]:
    why: dict[str, str] = {}
    for attempt in tried:
        why |= dict.fromkeys(set(names_in(attempt["selected"])) - why.keys(), "") | attempt["why"]
    refused: dict[str, str] = {}
    if state is not None:
        why = dict.fromkeys(state.selected.unsorted(), "") | why
        refused = dict(state.refused)
    here = {one["device"]: one for one in came}
    found = []
    for name in sorted({*why, *here, *refused}):
        update = here.get(name)
        refusal = refused.get(name) or ("" if update is None else update["lost"])
        status: DeviceStatus = "awaited" if open_ else "missing"
        if refusal:
            status = "refused"
        elif update is not None:
            status = "delivered"
        given = {} if update is None else {"wall": update["wall"], "size": update["size"]}
        found.append(RoundDevice(device=name, status=status, why=why.get(name, ""), refusal=refusal, **given))
    return tuple(found)


def _steps(
    store: Database,
    row: RoundRow,
    tried: Sequence[Mapping[str, Any]],
    arrivals: Sequence[float],
    quorum: int | None,
) -> list[RoundStep]:
    found = []
    for one in tried:
        words = f"attempt {one['attempt']}: {count_in(one['selected']):,} devices selected"
        words += f" by {one['policy']}" if one["policy"] else ""
        found.append(RoundStep(kind="opened", wall=one["opened_wall"], words=words, attempt=one["attempt"]))
        if one["closed_wall"] is not None:
            words = f"attempt {one['attempt']}: {one['outcome'].replace('_', ' ')}"
            found.append(
                RoundStep(kind="closed", wall=one["closed_wall"], words=words, attempt=one["attempt"])
            )
    if arrivals:
        found.append(RoundStep(kind="first", wall=arrivals[0], words="the first update is in the journal"))
    if quorum is not None and len(arrivals) >= quorum:
        words = f"{quorum:,} updates are here: the quorum"
        found.append(RoundStep(kind="quorum", wall=arrivals[quorum - 1], words=words))
    if row.version_wall is not None:
        words = f"version {row.round} is made of {row.folded or len(arrivals):,} updates"
        found.append(RoundStep(kind="folded", wall=row.version_wall, words=words))
    found += _later(store, row.round)
    order = get_args(StepKind)
    return sorted(found, key=lambda one: (one.wall, one.attempt or 0, order.index(one.kind)))


def _later(store: Database, version: int) -> list[RoundStep]:
    """Evaluation, as long as the journal has its event, and export."""
    events, exports = schema.events, schema.exports
    found = []
    done = (events.c.event["type"].as_string() == "evaluation_done") & (
        events.c.event["version"].as_integer() == version
    )
    for row in store.rows(sa.select(events.c.now).where(done).order_by(events.c.seq.desc()).limit(1)):
        words = f"version {version} is evaluated"
        found.append(RoundStep(kind="evaluated", wall=row["now"], words=words))
    asked = sa.select(exports.c.wall, exports.c.size).where(exports.c.version == version)
    for row in store.rows(asked):
        words = f"a bundle of {row['size']:,} bytes is stored"
        found.append(RoundStep(kind="exported", wall=row["wall"], words=words))
    return found


def _curve(arrivals: Sequence[float], opened: float) -> tuple[tuple[float, int], ...]:
    step = max(1, -(-len(arrivals) // _MAX_CURVE))
    numbers = sorted({*range(0, len(arrivals), step), len(arrivals) - 1}) if arrivals else []
    points = {0.0: 0} | {round(arrivals[n] - opened, 2): n + 1 for n in numbers}  # of a moment, all that came
    return tuple(points.items())


def read_updates(store: Database, number: int, devices: Sequence[str]) -> dict[str, DeviceUpdate]:
    """What came with the updates of some devices of a round."""
    updates, metrics = schema.updates, schema.device_metrics
    told = sa.select(metrics.c.device, metrics.c.metrics).where(metrics.c.round == number)
    local = {row["device"]: row["metrics"] for row in store.rows(told.where(metrics.c.device.in_(devices)))}
    query = sa.select(updates.c.device, updates.c.header, updates.c.blobs).where(updates.c.round == number)
    return {
        row["device"]: DeviceUpdate(
            samples=row["header"]["samples"],
            metrics=row["header"]["metrics"],
            quality=row["header"]["quality"],
            local=local.get(row["device"], {}),
            blobs=None if row["blobs"] is None else len(row["blobs"]),
        )
        for row in store.rows(query.where(updates.c.device.in_(devices)))
    }
