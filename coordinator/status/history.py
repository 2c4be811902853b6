"""The history, read from the database alone: works while the coordinator runs, and after."""

import json
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from coordinator.admission.quarantine import read as conduct
from coordinator.aggregation.reported_metrics import reported_metric_names
from coordinator.aggregation.secure.reports import reports_of
from coordinator.evaluations import store as evaluations
from coordinator.fleet.serving_routes import unserved
from coordinator.privacy.account_store import accounts
from coordinator.recovery.rebuild import META as SALVAGED
from coordinator.round_machine.queries import replay
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import MOST_NAMED, count_in, names_in
from coordinator.storage.location import Location
from coordinator.storage.model_registry import best_version
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

LISTED: Final = 1000
"""Rows of devices, refusals and quarantines in a history of the last rounds."""


def read(where: Location | Path, *, last: int | None = None) -> dict[str, Any]:
    """The history as one JSON object.

    Args:
        where: the coordinator's tables; a folder stands for the SQLite files in it.
        last: so many rounds and versions, the newest ones, and ``LISTED`` rows of each other list; None: all.

    Returns:
        ``task``, ``reported`` (names of metrics that are means of what devices say), ``phase``,
        ``round``, ``version``,
        ``best`` (version, metric, value; None: none is evaluated), ``why`` (what it waited for at
        ``why_wall``),
        ``salvaged`` (what was done when the database was damaged the last time),
        ``bytes_up``, ``bytes_down``, ``disk_writes`` (commits, syncs and bytes of the process that wrote
        last, since it started), and the lists ``versions`` (``privacy``: its account, or None), ``rounds``
        (each with its attempts, its updates, the ``privacy`` of its version, and of a secure one ``secure``:
        how each of its attempts stands (:class:`coordinator.secure_aggregation.report.SecureReport`); of a
        guided one also
        ``weighing``, as :mod:`coordinator.aggregation.device_weights` keeps it), ``refusals``,
        ``quarantine`` (each device's last one, over or not), ``devices``, ``exports``, ``bundles`` (of a
        routed method: each serving route's) and ``unserved`` (routes that the last export left out); and
        ``confusion`` of the last judged version, rows the true class; ``evaluations`` by devices on their
        held-back windows, by version (:meth:`coordinator.evaluations.sums.VersionSums.scores`, of the newest
        one also ``of_devices``). ``left_out``: of which lists how many entries are not here.

    Raises:
        Misconfigured: there is no coordinator's state in that folder.
    """
    location = Location.at(where)
    if not location.exists():
        raise Misconfigured(f"state_dir: {location.where} is not there; has this coordinator ever run?")
    with location.database(read_only=True) as store:
        return _bounded(_read(store, last), last)


def _bounded(found: dict[str, Any], last: int | None) -> dict[str, Any]:
    left_out: dict[str, int] = {}
    for key in () if last is None else ("devices", "refusals", "quarantine"):
        if len(found[key]) > LISTED:
            left_out[key] = len(found[key]) - LISTED
            found[key] = found[key][:LISTED]
    return found | {"left_out": left_out}


def _read(store: Database, last: int | None) -> dict[str, Any]:
    known = store.get_meta("task")
    task = None if known is None else Task.model_validate_json(known)
    state, _ = replay(store.journal())
    since = 0 if last is None else max(0, state.round - last)
    table = schema.versions
    versions = store.rows(sa.select(table).where(table.c.version >= since).order_by(table.c.version))
    parts = {row["version"]: row["by"] for row in store.rows(sa.select(schema.parts))}
    private = accounts(store, [row["version"] for row in versions])
    versions = [{**row, "privacy": private.get(row["version"])} for row in versions]
    return {
        "task": None if task is None else task.name,
        "reported": [] if task is None else list(reported_metric_names(task)),
        "phase": state.phase.value,
        "round": state.round,
        "version": state.version,
        "best": None if (best := best_version(store)) is None else best.as_json(),
        "why": store.get_meta("why") or "",
        "why_wall": float(store.get_meta("why_wall") or 0.0),
        "trouble": state.trouble,
        "salvaged": store.get_meta(SALVAGED) or "",
        "bytes_up": int(store.get_meta("bytes_up") or 0),
        "bytes_down": int(store.get_meta("bytes_down") or 0),
        "disk_writes": json.loads(store.get_meta("disk_writes") or "{}"),
        "versions": [
            {**{k: v for k, v in row.items() if k != "confusion"}, "by": parts.get(row["version"], {})}
            for row in versions
        ],
        "rounds": _rounds(store, {row["version"]: row for row in versions}, since),
        "refusals": store.rows(sa.select(schema.refusals).order_by(*schema.refusals.primary_key)),
        "quarantine": [
            {
                "device": device,
                "since_wall": one.since,
                "until_wall": one.until,
                "times": one.level,
                "reason": one.reason,
            }
            for device, one in sorted(conduct(store).items())
            if one.until
        ],
        "devices": [
            _device(row) for row in store.rows(sa.select(schema.devices).order_by(schema.devices.c.device))
        ],
        "exports": store.rows(sa.select(schema.exports).order_by(schema.exports.c.version)),
        "bundles": store.rows(sa.select(schema.bundles).order_by(schema.bundles.c.route)),
        "unserved": unserved(store),
        "confusion": _confusion(versions, task),
        "evaluations": {} if task is None else _evaluations(store, task, versions, last),
    }


def _evaluations(
    store: Database, task: Task, versions: list[dict[str, Any]], last: int | None
) -> dict[int, dict[str, Any]]:
    """What devices found, by version; of the newest version also by device."""
    found = evaluations.read(store, task, [row["version"] for row in versions])
    if found:
        newest, limit = max(found), evaluations.ROWS_LISTED if last else None
        found[newest]["of_devices"] = evaluations.of_devices(store, task, newest, limit=limit)
    return found


def read_rounds(
    where: Location | Path, number: int | None
) -> tuple[dict[str, Any] | None, tuple[int, int] | None]:
    """One round as in :func:`read`; None for the newest.

    Returns:
        The round, None if it is not known here; and the first and the last that are known, None if none is.

    Raises:
        Misconfigured: there is no coordinator's state in that folder.
    """
    with Location.at(where).database(read_only=True) as store:
        rounds = schema.attempts.c.round
        [edges] = store.rows(sa.select(sa.func.min(rounds).label("first"), sa.func.max(rounds).label("last")))
        if edges["last"] is None:
            return None, None
        wanted = edges["last"] if number is None else number
        table = schema.versions
        versions = store.rows(sa.select(table).where(table.c.version.in_([wanted - 1, wanted])))
        private = accounts(store, [wanted])
        versions = [{**row, "privacy": private.get(row["version"])} for row in versions]
        found = _rounds(store, {row["version"]: row for row in versions}, wanted - 1, wanted)
        return next(iter(found), None), (edges["first"], edges["last"])


def _rounds(
    store: Database, versions: dict[int, dict[str, Any]], since: int, until: int | None = None
) -> list[dict[str, Any]]:
    """Each round after ``since`` with its attempts, its deliveries, and its outcome."""

    def within(column: sa.Column[int]) -> sa.ColumnElement[bool]:
        return column > since if until is None else (column > since) & (column <= until)

    attempts, updates = schema.attempts, schema.updates
    rounds: dict[int, dict[str, Any]] = {}
    tried = sa.select(attempts).where(within(attempts.c.round))
    for row in store.rows(tried.order_by(attempts.c.round, attempts.c.attempt)):
        entry = rounds.setdefault(row["round"], {"round": row["round"], "attempts": [], "updates": []})
        entry["attempts"].append(_attempt(row))
    told = sa.select(schema.device_metrics).where(within(schema.device_metrics.c.round))
    local = {(row["round"], row["device"]): row["metrics"] for row in store.rows(told)}
    came = sa.select(updates).where(within(updates.c.round))
    for row in store.rows(came.order_by(updates.c.round, updates.c.device)):
        entry = rounds.setdefault(row["round"], {"round": row["round"], "attempts": [], "updates": []})
        entry["updates"].append(_update(row, local.get((row["round"], row["device"]), {})))
    weighings = sa.select(schema.weighings).where(within(schema.weighings.c.round))
    weighed = {row.pop("round"): row for row in store.rows(weighings)}
    secure = reports_of(store, rounds)
    for number, entry in rounds.items():
        version = versions.get(number, {})
        entry["metrics"] = version.get("metrics", {})
        entry["counted"] = version.get("devices", [])
        entry["privacy"] = version.get("privacy")
        entry["weighing"] = weighed.get(number)
        entry["secure"] = [one.model_dump(mode="json") for one in secure.get(number, ())]
        entry["bytes_up"], entry["bytes_down"] = _delta(versions, number)
    return [rounds[number] for number in sorted(rounds)]


def _attempt(row: dict[str, Any]) -> dict[str, Any]:
    """``selected`` names some of a large fleet, ``selected_count`` says how many there were."""
    kept = row["selected"]
    told = {key: value for key, value in row.items() if key != "round"}
    return told | {"selected": list(names_in(kept))[:MOST_NAMED], "selected_count": count_in(kept)}


def _update(row: dict[str, Any], local: dict[str, float]) -> dict[str, Any]:
    header = row["header"]
    told = {key: header[key] for key in ("samples", "weight", "counts", "missing", "quality", "metrics")}
    return {
        "device": row["device"],
        "size": row["size"],
        "wall": row["wall"],
        "lost": row["lost"],
        "blobs": row["blobs"],
        **told,
        "local": local,
    }


def _delta(versions: dict[int, dict[str, Any]], number: int) -> tuple[int | None, int | None]:
    """Bytes on the wire between two versions."""
    now, before = versions.get(number), versions.get(number - 1)
    if now is None or before is None:
        return None, None
    return now["bytes_up"] - before["bytes_up"], now["bytes_down"] - before["bytes_down"]


def _device(row: dict[str, Any]) -> dict[str, Any]:
    state = row["state"]
    shown = ("status", "roles", "modalities", "targets", "windows", "version")
    return {"device": row["device"], "wall": row["wall"], **{key: state.get(key) for key in shown}}


def _confusion(versions: list[dict[str, Any]], task: Task | None) -> dict[str, Any] | None:
    judged = [row for row in versions if row["confusion"] is not None]
    if not judged or task is None:
        return None
    return {"version": judged[-1]["version"], "labels": list(task.labels), "matrix": judged[-1]["confusion"]}
