"""The list of devices: the operator's decisions and the last states, joined."""

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from coordinator.admission.quarantine import OffenceRecord, in_quarantine, read
from coordinator.identity.store import DeviceRow
from coordinator.storage import schema
from coordinator.storage.location import Location


@dataclass(frozen=True, slots=True)
class LastSeen:
    """The coordinator's record of one device."""

    status: str
    wall: float
    quarantine: OffenceRecord | None = None


def seen_devices(where: Location | Path) -> dict[str, LastSeen]:
    """Devices that ever reported; empty if the coordinator never ran.

    Raises:
        Misconfigured: its database is damaged.
    """
    location = Location.at(where)
    if not location.exists():
        return {}
    with location.database(read_only=True) as store:
        rows = store.rows(sa.select(schema.devices))
        barred = dict(in_quarantine(read(store), time.time()))
    found = {row["device"]: LastSeen(row["state"]["status"], row["wall"]) for row in rows}
    for device, conduct in barred.items():
        known = found.get(device, LastSeen("never reported", conduct.since))
        found[device] = LastSeen(known.status, known.wall, conduct)
    return found


def all_devices(
    known: Sequence[DeviceRow],
    seen: Mapping[str, LastSeen],
    released_at: Callable[[str], float | None],
) -> list[dict[str, Any]]:
    """Every device by name, as a row for tables and programs; times in ISO 8601, UTC."""
    book = {row.name: row for row in known}
    return [_row(name, book.get(name), seen.get(name), released_at(name)) for name in sorted({*book, *seen})]


def _row(name: str, row: DeviceRow | None, seen: LastSeen | None, released: float | None) -> dict[str, Any]:
    conduct = seen.quarantine if seen is not None else None
    if conduct is not None and released is not None and released >= conduct.since:
        conduct = None
    return {
        "device": name,
        "status": "unknown" if row is None else row.status,
        "now": _now(row, seen),
        "last_seen": None if seen is None else _when(seen.wall),
        "key": None if row is None else row.key or None,
        "serial": None if row is None else row.serial,
        "certificate_until": None if row is None or row.not_after is None else _when(row.not_after),
        "enrolled": None if row is None or row.enrolled_wall is None else _when(row.enrolled_wall),
        "quarantined_until": None if conduct is None else _when(conduct.until),
        "note": _note(row, conduct),
    }


def _now(row: DeviceRow | None, seen: LastSeen | None) -> str | None:
    """Its last state; nothing is reported of a revoked device: not even its end is heard."""
    if row is not None and row.status == "revoked":
        return None if seen is None else "not heard"
    return None if seen is None else seen.status


def _note(row: DeviceRow | None, conduct: OffenceRecord | None) -> str:
    if conduct is not None:
        return f"in quarantine until {_when(conduct.until)[:16]}: {conduct.reason}"
    if row is None:
        return "no certificate here"
    if row.status == "pending":
        return "waits for: lichen device approve"
    if row.status == "active" and row.serial is None:
        return "has not fetched its certificate yet"
    if row.status == "active" and row.not_after is not None and row.not_after < time.time():
        return "its certificate has expired; it may still renew"
    return ""


def _when(wall: float) -> str:
    return dt.datetime.fromtimestamp(wall, dt.UTC).isoformat(timespec="seconds")
