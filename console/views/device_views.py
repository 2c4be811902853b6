"""The pages about devices, with what they read: those of a task, and those of the whole fleet."""

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
from console.views.device import OneDevice, TasksOfDevice
from console.views.enrolment import EnrolmentView
from console.views.fleet import FleetDevices
from console.views.refusals import RefusalsView
from coordinator.config.coordinator import CoordinatorSettings
from runtime.web.events import EventStream

_FLEET_S: Final = 0.25
_CHECK_S: Final = 3600.0
"""The chain of the audit log is checked so often while somebody looks."""
Services = Mapping[str, Callable[[], Awaitable[None]]]
"""What runs as long as the pages are served."""


class DeviceViews:
    """Parts about the devices of one task, and services that read for them.

    Args:
        settings: of the task.
        watch: whether its coordinator runs.
        readings: shared by all viewers.
        events: hears what has changed.
        tasks_of: finds the tasks that a device takes part in.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        watch: TableWatch,
        readings: SharedReadings,
        events: EventStream,
        tasks_of: TasksOfDevice,
    ) -> None:
        location = settings.location
        self._logs = DeviceLogReadings(location, readings)
        self._watch = watch
        self._tasks_of = tasks_of
        self.whole, self._single = TablesConnection.of_task(settings), TablesConnection.of_task(settings)
        source = FleetSource(location, self.whole, settings.main.location)
        self.fleet = SharedReader("fleet", source.read, events, period_s=_FLEET_S)

    def parts(self) -> Sequence[ConsolePart]:
        """For the application."""
        return [
            FleetDevices(self._watch, self.fleet).part(),
            OneDevice(self._watch, self.fleet, self._single, self._logs, self._tasks_of).part(),
            RefusalsView(self._watch, self.fleet).part(),
        ]

    def services(self) -> Services:
        """See :data:`Services`."""
        return {"devices": self.fleet.run}

    def close(self) -> None:
        """Close the connections."""
        self.whole.close()
        self._single.close()


class AdmissionViews:
    """Parts about admission and the audit log, which are the fleet's; and services that read for them.

    Args:
        settings: of the main task.
        watch: whether its coordinator runs.
        devices: of the main task; their reader has the admission, too.
        events: hears what has changed.
    """

    def __init__(
        self, settings: CoordinatorSettings, watch: TableWatch, devices: DeviceViews, events: EventStream
    ) -> None:
        self._settings = settings
        self._watch = watch
        self._fleet = devices.fleet
        location = settings.location
        self.audit = SharedReader("audit", AuditRows(location).read, events, period_s=2.0)
        self.checks = SharedReader("audit-check", lambda: check(location), events, period_s=_CHECK_S)

    def parts(self) -> Sequence[ConsolePart]:
        """For the application."""
        return [
            EnrolmentView(self._settings, self._watch, self._fleet).part(),
            AuditView(self._watch, self.audit, self.checks).part(),
        ]

    def services(self) -> Services:
        """See :data:`Services`."""
        return {"audit": self.audit.run, "audit-check": self.checks.run}
