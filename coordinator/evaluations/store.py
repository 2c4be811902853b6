"""The rows of devices' evaluations: written with the sums of their version in one transaction."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from coordinator.evaluations.sums import PartSums, VersionSums, scores_of
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.tasks.evaluation import DeviceEvaluation
from protocol.tasks.task import LABEL, Task

NEWEST: Final = 3
"""Of so many newest reported versions each device's row is stored, and of as many further ones: those that
the most devices reported on. Of others the sums remain."""
MOST_SUMS: Final = 256
"""Versions with sums."""
ROWS_LISTED: Final = 200

Reports = Mapping[tuple[int, str], tuple[float, DeviceEvaluation]]
"""By version and device: Unix seconds, and the report."""


def write(store: Database, task: Task, reports: Reports, most_devices: int) -> int:
    """Store reports; each replaces the device's earlier one on that version.

    Args:
        store: the tables.
        task: of the fleet.
        reports: checked.
        most_devices: with a row of one version; reports of further ones are left out.

    Returns:
        How many were stored; those on versions that do not exist or are too old, or of too many devices,
        were not.

    Raises:
        Transient: the database cannot be written now; nothing changed.
    """
    table, written = schema.evaluations, 0
    with store.transaction(write=True):
        known = sa.select(schema.versions.c.version).where(_among(schema.versions, {v for v, _ in reports}))
        for version in sorted(row["version"] for row in store.rows(known)):
            mine = {device: one for (of, device), one in reports.items() if of == version}
            sums, devices = _locked_sums(store, task, version)
            if sums.closed:
                continue
            had = sa.select(table).where(table.c.version == version, table.c.device.in_(sorted(mine)))
            before = {
                row["device"]: DeviceEvaluation.model_validate(row["report"]) for row in store.rows(had)
            }
            rows = []
            for device, (wall, report) in sorted(mine.items()):
                old = before.get(device)
                if old is None and devices >= most_devices:
                    continue
                if old is None:
                    devices += 1
                else:
                    sums.add(task, old, -1)
                sums.add(task, report)
                content = report.model_dump(mode="json")
                rows.append({"version": version, "device": device, "wall": wall, "report": content})
            store.put_all(table, rows)
            _put_sums(store, version, devices, sums)
            written += len(rows)
        _trim(store, task)
    return written


def remove(store: Database, task: Task, device: str) -> None:
    """Remove a device's rows, and take them out of the sums of their versions.

    Raises:
        Transient: the database cannot be written now; nothing changed.
    """
    table = schema.evaluations
    with store.transaction(write=True):
        mine = sa.select(table).where(table.c.device == device).order_by(table.c.version)
        for row in store.rows(mine):
            sums, devices = _locked_sums(store, task, row["version"])
            sums.add(task, _report(row), -1)
            _put_sums(store, row["version"], max(0, devices - 1), sums)
        store.remove(table, device=device)


def read(store: Database, task: Task, versions: Sequence[int]) -> dict[int, dict[str, Any]]:
    """By version: ``devices``, ``windows``, and the scores of :meth:`VersionSums.scores`."""
    table = schema.evaluation_sums
    rows = store.rows(sa.select(table).where(_among(table, versions)).order_by(table.c.version))
    return {
        row["version"]: {"devices": row["devices"], **VersionSums.of(row["sums"]).scores(task)}
        for row in rows
        if row["devices"]
    }


def newest(store: Database, task: Task) -> tuple[int, dict[str, Any]] | None:
    """The newest version with a report, and its scores; None if there is none."""
    table = schema.evaluation_sums
    found = store.rows(sa.select(sa.func.max(table.c.version).label("v")).where(table.c.devices > 0))
    version = found[0]["v"]
    scores = None if version is None else read(store, task, [version]).get(version)
    return None if scores is None else (version, scores)  # None, too, if its last device has just gone


def of_devices(
    store: Database, task: Task, version: int, *, skip: int = 0, limit: int | None = ROWS_LISTED
) -> list[dict[str, Any]]:
    """Each device's scores of a version, by name.

    Args:
        store: the tables.
        task: of the fleet.
        version: the version.
        skip: so many devices before: a page.
        limit: how many; None: all.
    """
    table = schema.evaluations
    query = sa.select(table).where(table.c.version == version)
    found = []
    for row in store.rows(query.order_by(table.c.device).offset(skip).limit(limit)):
        sums, report = PartSums(), _report(row)
        for part in report.parts:
            sums.add(part, 1)
        scores = scores_of(task, [sums])
        label = scores["targets"].get(LABEL, {})
        short = {key: label.get(key) for key in ("accuracy", "macro_f1")}
        about = {"device": row["device"], "wall": row["wall"], "windows": report.windows, **short}
        found.append(about | {"targets": scores["targets"]})
    return found


def count_rows(store: Database, version: int) -> int:
    """How many devices have a row of a version."""
    table = schema.evaluations
    count = sa.select(sa.func.count().label("n")).where(table.c.version == version)
    return int(store.rows(count)[0]["n"])


def _locked_sums(store: Database, task: Task, version: int) -> tuple[VersionSums, int]:
    """The sums of a version and the number of devices, locked until the transaction ends."""
    table, nothing = schema.evaluation_sums, VersionSums.empty(task).plain()
    new = {"version": version, "devices": 0, "wall": time.time(), "sums": nothing}
    store.insert_new(table, [new])
    [row] = store.rows(sa.select(table).where(table.c.version == version).with_for_update())
    return VersionSums.of(row["sums"]), int(row["devices"])


def _put_sums(store: Database, version: int, devices: int, sums: VersionSums) -> None:
    plain = sums.plain()
    store.put(schema.evaluation_sums, version=version, devices=devices, wall=time.time(), sums=plain)


def _trim(store: Database, task: Task) -> None:
    """Remove rows of versions beyond those of :data:`NEWEST`, and close their sums."""
    rows_table, sums_table = schema.evaluations, schema.evaluation_sums
    counted = sa.select(rows_table.c.version, sa.func.count().label("n")).group_by(rows_table.c.version)
    counts = {row["version"]: row["n"] for row in store.rows(counted)}
    order = sorted(counts, reverse=True)
    often = sorted(order[NEWEST:], key=lambda version: (-counts[version], -version))
    for version in often[NEWEST:]:
        sums, devices = _locked_sums(store, task, version)
        sums.closed = True
        _put_sums(store, version, devices, sums)
        store.remove(rows_table, version=version)
    summed = sa.select(sums_table.c.version).order_by(sums_table.c.version.desc()).offset(MOST_SUMS)
    for row in store.rows(summed):
        store.remove(rows_table, version=row["version"])
        store.remove(sums_table, version=row["version"])


def _report(row: Mapping[str, Any]) -> DeviceEvaluation:
    return DeviceEvaluation.model_validate(row["report"])


def _among(table: sa.Table, versions: Iterable[int]) -> sa.ColumnElement[bool]:
    return table.c.version.in_(sorted(set(versions)))
