"""Reads the fleet from the tables: what has changed, and not the rest."""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from console.tables.connection import TablesConnection
from console.tables.device_reports import DeviceReports, StateSummary
from console.tables.fleet import FleetMember, FleetPicture, RefusalCount
from console.tables.refused_updates import RefusedUpdates
from console.words import digest
from coordinator.admission.quarantine import in_quarantine
from coordinator.admission.quarantine import read as read_quarantine
from coordinator.identity.store import DeviceRow
from coordinator.identity.view import Identities, read_identities
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from coordinator.storage.location import Location
from protocol.tasks.task import Task

T = TypeVar("T")
_SILENT: Final = StateSummary("never reported", 0.0)


class _Held(Generic[T]):
    """What was read, as long as its mark is the same."""

    def __init__(self) -> None:
        self._found: tuple[Hashable, T] | None = None

    def get(self, mark: Hashable, read: Callable[[], T]) -> tuple[T, bool]:
        """What ``read`` gives, or gave for the same mark; and whether it was called."""
        if self._found is not None and self._found[0] == mark:
            return self._found[1], False
        self._found = mark, read()
        return self._found[1], True

    def forget(self) -> None:
        """Read again at the next call."""
        self._found = None


class _FleetParts:
    """What was read, and the members made of it. After an error it is of no use: changes are seen once."""

    def __init__(self) -> None:
        self.identities = _Held[Identities]()
        self.versions = _Held[Mapping[str, int]]()
        self.refusals = _Held[Sequence[RefusalCount]]()
        self.task = _Held[Task | None]()
        self.updates = RefusedUpdates()
        self._reports = DeviceReports()
        self._counts: Mapping[str, int] = {}
        self._held_back: frozenset[str] = frozenset()
        self._members: dict[str, FleetMember] = {}

    def members(
        self,
        store: Database,
        identities: Identities,
        quarantine: Iterable[str],
        refusals: Sequence[RefusalCount] | None,
        *,
        whole: bool,
    ) -> tuple[Mapping[str, FleetMember], bool]:
        """All devices in the order of their names, and whether one is new, gone or another one.

        Args:
            store: the tables, in a transaction.
            identities: as they are.
            quarantine: devices in quarantine.
            refusals: None: they have not changed.
            whole: the identities, or other things that any device depends on, have changed.
        """
        names = self._reports.read(store)
        versions, changed = self.versions.get(_mark_of_versions(store), lambda: _versions(store))
        whole = whole or changed or not self._members
        if refusals is not None:
            counts: Counter[str] = Counter()
            for row in refusals:
                counts[row.device] += row.count
            names |= {name for name in self._counts.keys() | counts if self._counts.get(name) != counts[name]}
            self._counts = counts
        held_back = frozenset(quarantine)
        names |= held_back ^ self._held_back
        self._held_back = held_back
        before = self._members
        if whole:
            names |= {*before, *self._reports.by_name, *identities.devices}
        made = {
            name: self._member(name, identities.devices.get(name), versions)
            for name in names
            if name in self._reports.by_name or name in identities.devices
        }
        gone = [name for name in names if name in before and name not in made]
        changes = {name: one for name, one in made.items() if before.get(name) != one}
        if gone or any(name not in before for name in changes):
            merged = {name: one for name, one in (before | changes).items() if name not in gone}
            self._members = {name: merged[name] for name in sorted(merged)}
        elif changes:
            self._members = before | changes  # in the same order
        return self._members, bool(gone or changes)

    def _member(self, name: str, row: DeviceRow | None, versions: Mapping[str, int]) -> FleetMember:
        report = self._reports.by_name.get(name, _SILENT)
        standing = _standing(row, quarantined=name in self._held_back)
        return FleetMember.of(name, report, standing, _version(report, versions), self._counts.get(name, 0))


class FleetSource:
    """Reads the picture, if something was written; :meth:`read` in one thread at a time.

    Args:
        location: of the tables.
        tables: the coordinator's own.
        main: where the main task's tables are: admission is there for all tasks; None: these are.
    """

    def __init__(self, location: Location, tables: TablesConnection, main: Location | None = None) -> None:
        self._admission = main or location
        self._is_apart = self._admission != location
        self._tables = tables
        self._parts = _FleetParts()
        self._rest: tuple[Any, ...] = ()
        self._count = 0
        self._began = time.time()
        self._picture: FleetPicture | None = None
        self._mark: Hashable = None
        self._until = -math.inf

    def read(self) -> tuple[FleetPicture, str]:
        """The picture, and a text that changes with it; raises as :meth:`TablesConnection.read`."""
        mark, now = self._tables.read(self._marks), time.time()
        if self._picture is None or mark != self._mark or now >= self._until:
            try:
                picture = self._read(now)
            except BaseException:
                self._parts, self._mark = _FleetParts(), None
                raise
            self._picture, self._mark, self._until = picture, mark, _ends(picture)
        return self._picture, digest(self._began, self._count)

    def _marks(self, store: Database) -> Hashable:
        own = self._tables.mark(store)
        return (own, self._admission.mark(IDENTITIES, store)) if self._is_apart else own

    def _read(self, now: float) -> FleetPicture:
        if now >= self._until:
            self._parts.identities.forget()
        mark = self._tables.read(lambda store: self._admission.mark(IDENTITIES, store))
        identities, changed = self._parts.identities.get(mark, lambda: read_identities(self._admission))
        return self._tables.read(lambda store: self._of(store, identities, now, whole=changed))

    def _of(self, store: Database, identities: Identities, now: float, *, whole: bool) -> FleetPicture:
        parts = self._parts
        parts.updates.read(store)
        quarantine = {
            device: one
            for device, one in in_quarantine(read_quarantine(store), now)
            if identities.released.get(device, 0.0) < one.since
        }
        refusals, new = parts.refusals.get(_mark_of_refusals(store), lambda: _refusals(store))
        members, changed = parts.members(
            store, identities, quarantine, refusals if new else None, whole=whole
        )
        known = store.get_meta("task")
        rest = (identities, refusals, quarantine, parts.updates.newest, known)
        if not changed and rest == self._rest and self._picture is not None:
            return self._picture
        self._rest = rest
        self._count += 1
        task, _ = parts.task.get(known, lambda: None if known is None else Task.model_validate_json(known))
        return FleetPicture(
            members, identities, refusals, quarantine, refused_updates=parts.updates.newest, task=task
        )


def _ends(picture: FleetPicture) -> float:
    """When the picture changes without a write, Unix seconds: a quarantine or an invite ends."""
    invites = (one.expires_wall for one in picture.identities.invites)
    return min((*invites, *(one.until for one in picture.quarantine.values())), default=math.inf)


def _standing(row: DeviceRow | None, *, quarantined: bool) -> str:
    if row is not None and row.status != "active":
        return row.status
    return "quarantined" if quarantined else ""


def _version(report: StateSummary, versions: Mapping[str, int]) -> int | None:
    if report.model is None:
        return None
    if report.trial_bundle == report.model:
        return report.trial_version
    return versions.get(report.model)


def _mark_of_versions(store: Database) -> Hashable:
    """Rows are added, replaced by newer ones, or removed."""
    exports, bundles = schema.exports.c, schema.bundles.c
    count = sa.func.count()
    with store.transaction() as connection:
        found = connection.execute(sa.select(count, sa.func.max(exports.version), sa.func.max(exports.wall)))
        routed = connection.execute(sa.select(count, sa.func.max(bundles.version), sa.func.max(bundles.wall)))
        return tuple(found.one()), tuple(routed.one())


def _mark_of_refusals(store: Database) -> Hashable:
    """Counts only grow, and rows are removed."""
    table = schema.refusals.c
    marks = (sa.func.count(), sa.func.sum(table.count), sa.func.max(table.last_wall))
    with store.transaction() as connection:
        return tuple(connection.execute(sa.select(*marks)).one())


def _versions(store: Database) -> dict[str, int]:
    """Version by digest of its bundle; bundles of removed versions are known as long as their rows are."""
    found: dict[str, int] = {}
    for table in (schema.bundles, schema.exports):
        for row in store.rows(sa.select(table.c.digest, table.c.version)):
            found[str(row["digest"])] = int(row["version"])
    return found


def _refusals(store: Database) -> list[RefusalCount]:
    """All counts, the newest first; the coordinator bounds their number."""
    table = schema.refusals
    rows: Iterable[Mapping[str, Any]] = store.rows(
        sa.select(table).order_by(table.c.last_wall.desc(), table.c.device, table.c.reason)
    )
    return [
        RefusalCount(row["device"], row["reason"], int(row["count"]), row["last_detail"], row["last_wall"])
        for row in rows
    ]
