"""What the console reads and shows of one task: connections, readers, pages and operations."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.tables.bundle_files import BundleFiles
from console.tables.connection import TablesConnection
from console.tables.marks import MARKS
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.device import TasksOfDevice
from console.views.device_views import DeviceViews, Services
from console.views.evaluations.device_evaluations import DeviceEvaluationPages
from console.views.overview import Overview
from console.views.rollouts import RolloutPages
from console.views.rounds import RoundPages
from console.views.versions import VersionPages
from coordinator.config.coordinator import CoordinatorSettings
from runtime.web.events import EventStream

Page = Callable[[Request], Awaitable[Response]]


class TaskSite:
    """The pages and operations of one task, and the services that read for them.

    Args:
        settings: of the task.
        tasks_of: finds the tasks that a device takes part in.
    """

    def __init__(self, settings: CoordinatorSettings, tasks_of: TasksOfDevice) -> None:
        self.settings = settings
        self.events = EventStream()
        # Of the watch alone: no page waits until the status is read.
        self._watched, self._tables = TablesConnection.of_task(settings), TablesConnection.of_task(settings)
        self.watch = TableWatch(settings, self._watched, self.events, MARKS)
        readings = SharedReadings(self._tables, self.watch)
        self.devices = DeviceViews(settings, self.watch, readings, self.events, tasks_of)
        self.parts = (
            Overview(settings, self.watch, readings, self.events).part(),
            RoundPages(self.watch, readings).part(),
            VersionPages(self.watch, readings, BundleFiles(settings), settings.fleet).part(),
            DeviceEvaluationPages(self.watch, readings).part(),
            RolloutPages(settings, self.watch, readings).part(),
            *self.devices.parts(),
        )
        self.pages: dict[str, Page] = {
            route.path: route.endpoint
            for part in self.parts
            for route in part.routes
            if isinstance(route, Route)
        }
        self.operations = {(one.method, one.path): one for part in self.parts for one in part.endpoints}
        self.services: Services = {"tables": self.watch.run, **self.devices.services()}

    def close(self) -> None:
        """Close the connections, after what is being read."""
        self.devices.close()
        self._watched.close()
        self._tables.close()
