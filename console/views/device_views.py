"""The pages about devices, with what they read."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from console.ports import ConsolePart
from console.tables.audit import AuditRows, check
from console.tables.connection import TablesConnection
from console.tables.device_detail import DeviceLogReadings
from console.tables.fleet_source import FleetSource
from console.tables.reader import SharedReader
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.audit import AuditView
from console.views.device import OneDevice
from console.views.enrolment import EnrolmentView
from console.views.fleet import FleetDevices
from console.views.refusals import RefusalsView
from coordinator.config.coordinator import CoordinatorSettings
from runtime.web.events import EventStream

_FLEET_S: Final = 0.25
_CHECK_S: Final = 3600.0
"""The chain of the audit log is checked so often while somebody looks."""


class DeviceViews:
    """Parts, and services that read for them.

    Args:
        settings: of the coordinator.
        watch: whether it runs.
        readings: shared by all viewers.
        events: hears what has changed.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        watch: TableWatch,
        readings: SharedReadings,
        events: EventStream,
    ) -> None:
        location = settings.location
        self._logs = DeviceLogReadings(location, readings)
        self._settings = settings
        self._watch = watch
        self.whole, self._single = TablesConnection(location), TablesConnection(location)
        self.fleet = SharedReader("fleet", FleetSource(location, self.whole).read, events, period_s=_FLEET_S)
        self.audit = SharedReader("audit", AuditRows(location).read, events, period_s=2.0)
        self.checks = SharedReader("audit-check", lambda: check(location), events, period_s=_CHECK_S)

    def parts(self) -> Sequence[ConsolePart]:
        """For the application."""
        return [
            FleetDevices(self._watch, self.fleet).part(),
            OneDevice(self._watch, self.fleet, self._single, self._logs).part(),
            EnrolmentView(self._settings, self._watch, self.fleet).part(),
            RefusalsView(self._watch, self.fleet).part(),
            AuditView(self._watch, self.audit, self.checks).part(),
        ]

    def services(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What runs as long as the pages are served."""
        return {"devices": self.fleet.run, "audit": self.audit.run, "audit-check": self.checks.run}

    def close(self) -> None:
        """Close the connections."""
        self.whole.close()
        self._single.close()
