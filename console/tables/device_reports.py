"""The devices' last states, read again only where they changed."""

import time
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from pydantic import ValidationError

from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.messages import State
from runtime.text import one_line

_WHOLE_S: Final = 60.0
"""After so long every row is read: a change that keeps time and status shows no sooner."""
_AT_ONCE: Final = 500


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


class DeviceReports:
    """The reports of all devices; :meth:`read` in one thread at a time."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[float, str]] = {}
        self._whole = float("-inf")
        self.by_name: dict[str, StateSummary] = {}

    def read(self, store: Database) -> None:
        """Read what has changed: a report is the same object as long as its row is the same."""
        table = schema.devices
        status = table.c.state["status"].as_string().label("status")
        with store.transaction() as connection:
            found = connection.execute(sa.select(table.c.device, table.c.wall, status))
            marks = {str(device): (float(wall), str(word)) for device, wall, word in found}
            changed = [name for name, mark in marks.items() if self._marks.get(name) != mark]
            whole = time.monotonic() - self._whole > _WHOLE_S
            query = sa.select(table)
            if not whole and len(changed) <= _AT_ONCE:
                query = query.where(table.c.device.in_(changed))
            rows = connection.execute(query).mappings() if whole or changed else ()
            read = {str(row["device"]): report_of(row) for row in rows}
        if whole:
            self._whole = time.monotonic()
        for name, report in read.items():
            if self.by_name.get(name) != report:
                self.by_name[name] = report
        for name in self.by_name.keys() - marks.keys():
            del self.by_name[name]
        self._marks = marks
