"""The devices' last states, read again only where they changed."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from pydantic import ValidationError

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.messages import State
from runtime.text import one_line

_WHOLE_S: Final = 5.0
"""So often all rows are compared: what a clock that was set back wrote shows no sooner."""
_OVERLAP_S: Final = 2.0
"""Rows are on disk later than their time says; one that is later still is found when all are compared."""

_AT_ONCE: Final = 500
_Row = tuple[str, float, str]


@dataclass(frozen=True, slots=True)
class ModalityReport:
    """``quality`` and ``missing`` are shares; ``windows``: with this modality."""

    name: str
    quality: float | None
    missing: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateSummary:
    """What a list shows of a device's last state.

    Attributes:
        status: its word; ``unreadable``: its row is damaged, and the device will send it again.
        wall: when it came, Unix seconds.
        modalities: by name.
        model: digest of the bundle that it runs.
        trial: phase of the trial of the last announced model; empty without one.
        trial_version: its version.
        trial_bundle: its bundle.
        hindrance: why it does not run what it should, or does not learn; empty if nothing prevents it.
        labels: the operator's, as ``site: barn``, sorted.
        release: of its software.
    """

    status: str
    wall: float
    roles: tuple[str, ...] = ()
    modalities: tuple[ModalityReport, ...] = ()
    model: str | None = None
    trial: str = ""
    trial_version: int | None = None
    trial_bundle: str = ""
    hindrance: str = ""
    labels: tuple[str, ...] = ()
    release: str = ""


def report_of(row: Any) -> StateSummary:
    """The report in a row of ``schema.devices``."""
    try:
        state = State.model_validate(row["state"])
    except ValidationError:
        return StateSummary("unreadable", float(row["wall"]), hindrance="its row in the tables is damaged")
    trial = state.trial
    return StateSummary(
        status=state.status,
        wall=float(row["wall"]),
        roles=tuple(sorted(state.roles)),
        modalities=tuple(
            ModalityReport(name, one.quality, one.missing, one.reasons)
            for name, one in sorted(state.modalities.items())
        ),
        model=state.model,
        trial="" if trial is None else trial.phase,
        trial_version=None if trial is None else trial.version,
        trial_bundle="" if trial is None else trial.bundle,
        hindrance=hindrance_of(state),
        labels=tuple(f"{name}: {value}" for name, value in sorted((state.labels or {}).items())),
        release=state.version,
    )


def hindrance_of(state: State) -> str:
    """Why a device does not run its version, or does not do its task, in its own words."""
    found = []
    if state.hindered is not None:
        found.append(state.hindered.why)
    if state.trial is not None and state.trial.phase in {"rolled_back", "refused"} and state.trial.why:
        found.append(
            f"{state.trial.phase.replace('_', ' ')} version {state.trial.version}: {state.trial.why}"
        )
    if state.refuses is not None:
        found.append(f"does not do the task: {state.refuses}")
    if state.distrusts is not None:
        found.append(f"does not trust the task: {state.distrusts}")
    return one_line("; ".join(found), 1000)


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """What changed in ``schema.devices``.

    Attributes:
        new: device, time and state as text, of each row that is new or another one.
        gone: devices whose rows were removed.
    """

    new: Sequence[_Row]
    gone: Sequence[str]

    def rows(self) -> Iterator[dict[str, Any]]:
        """The new ones as rows of the table; a state that is no JSON is None, which is no state either."""
        for device, wall, text in self.new:
            try:
                state = json.loads(text)
            except (TypeError, ValueError, RecursionError):
                state = None
            yield {"device": device, "state": state, "wall": wall}


class ChangedDevices:
    """What changed since the last call of :meth:`read`; in one thread at a time.

    One device of 10,000 that changed costs a few milliseconds: its row is found by its time, or where digests
    of all rows are compared, and only its state is parsed.
    """

    def __init__(self) -> None:
        self._digests: dict[str, int] = {}
        self._newest = 0.0
        self._compared = float("-inf")

    def read(self, store: Database) -> DeviceChanges:
        """The changes; at the first call all rows."""
        table, gone = schema.devices, list[str]()
        query = sa.select(table.c.device, table.c.wall, sa.cast(table.c.state, sa.Text))
        with store.transaction() as connection:
            now = time.monotonic()
            whole = now - self._compared >= _WHOLE_S
            if not whole:
                newer = query.where(table.c.wall >= self._newest - _OVERLAP_S)
                new = self._changed(connection.execute(newer))
                count = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                whole = len(self._digests) + sum(row[0] not in self._digests for row in new) != count
            if whole:
                there = set[str]()
                new = self._changed(connection.execute(query), there)
                gone = list(self._digests.keys() - there)
                self._compared = now
        for name in gone:
            del self._digests[name]
        for name, wall, text in new:
            self._digests[name] = hash((wall, text))
            # A time in the future, of a clock that was wrong, must not hide all that follows.
            self._newest = max(self._newest, min(wall, time.time()))
        return DeviceChanges(new, gone)

    def _changed(self, rows: sa.Result[str, float, str], there: set[str] | None = None) -> list[_Row]:
        """Rows that are not as they were; all names are added to ``there``."""
        known, found = self._digests.get, list[_Row]()
        for part in rows.partitions(_AT_ONCE):  # few at a time: the garbage collector visits what is held
            if there is not None:
                there.update([row[0] for row in part])
            found += [(row[0], row[1], row[2]) for row in part if known(row[0]) != hash((row[1], row[2]))]
        return found


class DeviceReports:
    """The reports of all devices; :meth:`read` in one thread at a time."""

    def __init__(self) -> None:
        self._changes = ChangedDevices()
        self.by_name: dict[str, StateSummary] = {}

    def read(self, store: Database) -> set[str]:
        """Read what has changed; returns the devices whose report is another one, or gone.

        After an error the object is of no use: changes are reported once.
        """
        changes = self._changes.read(store)
        changed = {name for name in changes.gone if self.by_name.pop(name, None) is not None}
        for row in changes.rows():
            name, report = row["device"], report_of(row)
            if self.by_name.get(name) != report:
                self.by_name[name] = report
                changed.add(name)
        return changed


class FollowedRegistry:
    """The coordinator's registry as the tables have it: a ``coordinator.cli.status.RegistryReader``."""

    def __init__(self) -> None:
        self._changes = ChangedDevices()
        self._registry: DeviceRegistry | None = None
        self._wall: Callable[[], float] = time.time

    def __call__(self, store: Database, wall: Callable[[], float]) -> DeviceRegistry:
        """All devices; in one thread at a time. After an error as :meth:`DeviceReports.read`."""
        self._wall = wall
        changes = self._changes.read(store)
        if self._registry is None:
            self._registry = DeviceRegistry(store, lambda: self._wall())  # noqa: PLW0108 - of this call
        else:
            self._registry.follow(changes.rows(), changes.gone)
        return self._registry
