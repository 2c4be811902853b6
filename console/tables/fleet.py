"""The fleet in memory, sorted once for all viewers."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console.tables.device_reports import StateSummary
from console.tables.refused_updates import RefusedUpdate
from coordinator.admission.quarantine import OffenceRecord
from coordinator.identity.view import Identities
from protocol.tasks.task import Task

_ATTENTION: Final = frozenset({"pending", "quarantined"})


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

    @classmethod
    def of(
        cls, name: str, report: StateSummary, standing: str, version: int | None, refusals: int
    ) -> "FleetMember":
        """The device with what follows from its report."""
        qualities = [one.quality for one in report.modalities if one.quality is not None]
        words = (
            name,
            report.status,
            standing,
            *report.roles,
            *(one.name for one in report.modalities),
            *report.labels,
            report.hindrance,
            report.release,
        )
        quality = min(qualities, default=None)
        return cls(name, report, standing, version, refusals, quality, "\n".join(words).lower())

    @property
    def wall(self) -> float | None:
        """When it was last heard, Unix seconds; None: never."""
        return self.report.wall or None

    @property
    def needs_attention(self) -> bool:
        """Whether an operator should look at it."""
        return bool(self.report.hindrance) or self.standing in _ATTENTION


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
        members: all devices, in the order of their names.
        identities: of the identity store.
        refusals: the newest first.
        quarantine: devices in quarantine, with their record.
        refused_updates: the newest first.
        task: None: there is none yet.
    """

    def __init__(
        self,
        members: Mapping[str, FleetMember],
        identities: Identities,
        refusals: Sequence[RefusalCount],
        quarantine: Mapping[str, OffenceRecord],
        *,
        refused_updates: Sequence[RefusedUpdate],
        task: Task | None,
    ) -> None:
        self.by_name = members
        self.members = list(members.values())
        self.identities = identities
        self.refusals = refusals
        self.quarantine = quarantine
        self.refused_updates = refused_updates
        self.task = task
        self.statuses = Counter([one.report.status for one in self.members])
        self.standings = Counter([one.standing for one in self.members if one.standing])
        self.attention = sum(bool(one.report.hindrance) or one.standing in _ATTENTION for one in self.members)
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
