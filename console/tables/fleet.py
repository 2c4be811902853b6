"""The fleet as the tables have it, in memory, sorted once for all viewers."""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from console.tables.connection import TablesConnection
from console.tables.device_reports import DeviceReports, StateSummary
from console.tables.refused_updates import RefusedUpdate, RefusedUpdates
from console.words import digest
from coordinator.admission.quarantine import OffenceRecord, in_quarantine
from coordinator.admission.quarantine import read as read_quarantine
from coordinator.identity.store import DeviceRow
from coordinator.identity.view import Identities, read_identities
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import Location
from protocol.tasks.task import Task

_SILENT: Final = StateSummary("never reported", 0.0)


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One device in the list.

    Attributes:
        name: from its certificate, its topic, or the operator.
        report: its last state.
        standing: ``revoked``, ``pending``, ``quarantined``, or empty.
        version: of the model that it runs; None: none, or one that this coordinator does not know.
        refusals: of its messages, so far.
        quality: of its worst modality, 0 to 1; None: it reports none.
        text: all that a search looks in, in lower case.
    """

    name: str
    report: StateSummary
    standing: str
    version: int | None
    refusals: int
    quality: float | None
    text: str

    @property
    def wall(self) -> float | None:
        """When it was last heard, Unix seconds; None: never."""
        return self.report.wall or None

    @property
    def needs_attention(self) -> bool:
        """Whether an operator should look at it."""
        return bool(self.report.hindrance or self.standing in {"pending", "quarantined"})


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """Refused messages of a device for one reason. ``wall``: of the last one, Unix seconds."""

    device: str
    reason: str
    count: int
    detail: str
    wall: float


_KEYS: Final[Mapping[str, Callable[[FleetMember], Any]]] = {
    "device": lambda one: one.name,
    "status": lambda one: (one.standing, one.report.status),
    "roles": lambda one: one.report.roles or None,
    "modalities": lambda one: [modality.name for modality in one.report.modalities] or None,
    "quality": lambda one: one.quality,
    "heard": lambda one: one.wall,
    "version": lambda one: one.version,
    "trial": lambda one: one.report.trial or None,
    "hindrance": lambda one: one.report.hindrance or None,
    "refusals": lambda one: one.refusals or None,
    "labels": lambda one: one.report.labels or None,
}


class FleetPicture:
    """What the tables said at one moment; sorts when it is first asked.

    Args:
        members: all devices by name.
        identities: of the identity store.
        refusals: the newest first.
        quarantine: devices in quarantine, with their record.
        refused_updates: the newest first.
        task: None: there is none yet.
    """

    def __init__(
        self,
        members: Sequence[FleetMember],
        identities: Identities,
        refusals: Sequence[RefusalCount],
        quarantine: Mapping[str, OffenceRecord],
        *,
        refused_updates: Sequence[RefusedUpdate],
        task: Task | None,
    ) -> None:
        self.members = members
        self.identities = identities
        self.refusals = refusals
        self.quarantine = quarantine
        self.refused_updates = refused_updates
        self.task = task
        self.by_name = {one.name: one for one in members}
        self.statuses = Counter(one.report.status for one in members)
        self.standings = Counter(one.standing for one in members if one.standing)
        self.attention = sum(one.needs_attention for one in members)
        self._orders: dict[tuple[str, bool], Sequence[FleetMember]] = {}

    def in_order(self, column: str, *, descending: bool) -> Sequence[FleetMember]:
        """All devices by a column; those without a value are last in both orders.

        Raises:
            KeyError: there is no such column.
        """
        order = self._orders.get((column, descending))
        if order is None:
            key = _KEYS[column]
            valued = [one for one in self.members if key(one) is not None]
            missing = [one for one in self.members if key(one) is None]
            order = [*sorted(valued, key=key, reverse=descending), *missing]
            self._orders[column, descending] = order
        return order


class FleetSource:
    """Reads the picture, if something was written; :meth:`read` in one thread at a time.

    Args:
        location: of the tables.
        tables: the coordinator's own.
    """

    def __init__(self, location: Location, tables: TablesConnection) -> None:
        self._location = location
        self._tables = tables
        self._reports = DeviceReports()
        self._updates = RefusedUpdates()
        self._made: dict[str, tuple[tuple[Any, ...], FleetMember]] = {}
        self._rest: tuple[Any, ...] = ()
        self._count = 0
        self._began = time.time()
        self._picture: FleetPicture | None = None
        self._mark: Hashable = None
        self._until = -math.inf

    def read(self) -> tuple[FleetPicture, str]:
        """The picture, and a text that changes with it; raises as :meth:`TablesConnection.read`."""
        mark, now = self._tables.read(self._tables.mark), time.time()
        if self._picture is not None and mark == self._mark and now < self._until:
            return self._picture, self._revision()
        identities = read_identities(self._location)
        picture = self._tables.read(lambda store: self._of(store, identities, now))
        self._mark, self._until = mark, _ends(picture)
        return picture, self._revision()

    def _revision(self) -> str:
        return digest(self._began, self._count)

    def _of(self, store: Database, identities: Identities, now: float) -> FleetPicture:
        self._reports.read(store)
        self._updates.read(store)
        refusals = _refusals(store)
        quarantine = {
            device: one
            for device, one in in_quarantine(read_quarantine(store), now)
            if identities.released.get(device, 0.0) < one.since
        }
        counts: Counter[str] = Counter()
        for one in refusals:
            counts[one.device] += one.count
        known = store.get_meta("task")
        members, changed = self._members(identities, quarantine, counts, _versions(store))
        rest = (identities, tuple(refusals), quarantine, self._updates.newest, known)
        if changed or rest != self._rest or self._picture is None:
            self._rest = rest
            self._count += 1
            task = None if known is None else Task.model_validate_json(known)
            self._picture = FleetPicture(
                members, identities, refusals, quarantine, refused_updates=self._updates.newest, task=task
            )
        return self._picture

    def _members(
        self,
        identities: Identities,
        quarantine: Mapping[str, OffenceRecord],
        refusals: Mapping[str, int],
        versions: Mapping[str, int],
    ) -> tuple[list[FleetMember], bool]:
        """All members by name, and whether one is new, gone or another one."""
        made: dict[str, tuple[tuple[Any, ...], FleetMember]] = {}
        changed = False
        for name in sorted({*self._reports.by_name, *identities.devices}):
            report = self._reports.by_name.get(name, _SILENT)
            standing = _standing(identities.devices.get(name), quarantined=name in quarantine)
            version = _version(report, versions)
            key = (id(report), standing, version, refusals.get(name, 0))
            old = self._made.get(name)
            if old is None or old[0] != key or old[1].report is not report:
                old = key, _member(name, report, standing, version, refusals.get(name, 0))
                changed = True
            made[name] = old
        changed = changed or len(made) != len(self._made)
        self._made = made
        return [one for _, one in made.values()], changed


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


def _member(
    name: str, report: StateSummary, standing: str, version: int | None, refusals: int
) -> FleetMember:
    qualities = [one.quality for one in report.modalities if one.quality is not None]
    names = (one.name for one in report.modalities)
    words = (
        name,
        report.status,
        standing,
        *report.roles,
        *names,
        *report.labels,
        report.hindrance,
        report.release,
    )
    quality = min(qualities, default=None)
    return FleetMember(name, report, standing, version, refusals, quality, "\n".join(words).lower())


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
