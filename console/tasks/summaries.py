"""All tasks in short, and which of them know a device: read while somebody looks, with a connection each."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa

from console.tables.connection import TablesConnection
from console.tables.device_reports import FollowedRegistry
from console.tasks.task_list import TaskList
from console.words import digest
from coordinator.cli.status import look
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.fleet.task_reports import TaskReport, read_reports
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.errors import LichenError
from protocol.tasks.task import Task
from runtime.text import first_few, one_line
from runtime.waits import Wait

IDLE_S: Final = 30.0
"""Connections that nobody needed for so long are closed."""
_AGAIN_S: Final = 5.0
"""Time changes some of a status, and tables appear: so often a task is read though nothing was written."""
_HELD: Final = 64
_NAMED: Final = 6


@dataclass(frozen=True)
class TaskSummary:
    """One task.

    Attributes:
        name: None: the main task.
        has_begun: whether its tables are there; then the rest is known.
        trouble: why its tables cannot be read now.
        task: the name in its ``task.toml``; None: not known yet.
        method: by which it learns.
        learns: what, in words.
        status: as ``lichen coordinator status`` prints it, without its waits.
        waits: what it waits for.
        report: of the process that runs all tasks about a further one; None: it does not know the task, none
            runs, or the task has processes of its own.
    """

    name: str | None
    has_begun: bool = True
    trouble: str = ""
    task: str | None = None
    method: str = ""
    learns: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    report: TaskReport | None = None


class TaskSummaries:
    """Reads all tasks of a fleet; :meth:`read` in one thread at a time, the rest in any.

    Args:
        tasks: of the fleet.
    """

    def __init__(self, tasks: TaskList) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()
        self._readers: dict[str | None, _TaskReader] = {}
        self._known: OrderedDict[str, tuple[float, tuple[str | None, ...]]] = OrderedDict()
        self._needed = time.monotonic()

    def read(self) -> tuple[tuple[TaskSummary, ...], str]:
        """All tasks, the main one first, and a text that changes with them."""
        readers = self._each()
        found = [one.read() for one in readers.values()]
        reports = readers[None].reports
        found = [replace(one, report=reports.get(one.name or "")) for one in found]
        lasting = [(one.name, one.trouble, one.task, one.waits, one.report, _lasting(one)) for one in found]
        return tuple(found), digest(lasting)

    def tasks_of(self, device: str) -> tuple[str | None, ...]:
        """The tasks whose tables have a state of a device; empty if the fleet has one task alone."""
        if not self._tasks.names:
            return ()
        with self._lock:
            at, found = self._known.get(device, (-_AGAIN_S, ()))
            if time.monotonic() - at < _AGAIN_S:
                return found
        found = tuple(name for name, one in self._each().items() if one.knows(device))
        with self._lock:
            self._known[device] = time.monotonic(), found
            self._known.move_to_end(device)
            while len(self._known) > _HELD:
                self._known.popitem(last=False)
        return found

    def close_idle(self, idle_s: float = IDLE_S) -> None:
        """Close the connections, if nothing was read for so long."""
        with self._lock:
            if time.monotonic() - self._needed < idle_s:
                return
            readers, self._readers = self._readers, {}
        for one in readers.values():
            one.close()

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._readers)

    def _each(self) -> "dict[str | None, _TaskReader]":
        """A reader for each task that there is now."""
        with self._lock:
            self._needed = time.monotonic()
            main, further = self._tasks.main, self._tasks.further
            wanted = {name: main if name is None else further[name] for name in (None, *further)}
            before = self._readers
            self._readers = {
                name: before[name]
                if name in before and before[name].settings == settings
                else _TaskReader(name, settings)
                for name, settings in wanted.items()
            }
            gone = [one for name, one in before.items() if self._readers.get(name) is not one]
            readers = dict(self._readers)
        for one in gone:
            one.close()
        return readers


class _TaskReader:
    def __init__(self, name: str | None, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self._name = name
        self._tables = TablesConnection.of_task(settings)
        self._registry = FollowedRegistry()
        self._mark: object = None
        self._held = TaskSummary(name)
        self.reports: dict[str, TaskReport] = {}
        """Of the further tasks, in the tables of the main one."""
        self._at = -_AGAIN_S

    def read(self) -> TaskSummary:
        if self._held.trouble and time.monotonic() - self._at < _AGAIN_S:
            return self._held
        try:
            self._held = self._tables.read(self._look)
        except (LichenError, ValueError, TypeError, LookupError, ArithmeticError) as error:
            is_ours = isinstance(error, LichenError)
            words = str(error) if is_ours else f"rows of the tables are not as expected: {error!r}"
            self.reports = {}
            self._registry, self._mark, self._at = FollowedRegistry(), None, time.monotonic()
            self._held = TaskSummary(self._name, has_begun=self._exists(), trouble=words[:500])
        return self._held

    def _exists(self) -> bool:
        try:
            return self.settings.location.exists()
        except LichenError:
            return True

    def _look(self, store: Database) -> TaskSummary:
        mark, now = (self._tables.mark(store), store.is_served()), time.monotonic()
        if mark == self._mark and now - self._at < _AGAIN_S:
            return self._held
        status, waits = look(store, self.settings, time.time(), self._registry)
        self.reports = read_reports(store) if status["running"] else {}
        known = store.get_meta("task")
        task = None if known is None else Task.model_validate_json(known)
        self._mark, self._at = mark, now
        return TaskSummary(
            self._name,
            task=None if task is None else task.name,
            method="" if task is None else task.method,
            learns="" if task is None else _learns(task),
            status=status,
            waits=tuple(waits),
        )

    def knows(self, device: str) -> bool:
        table = schema.devices
        query = sa.select(table.c.device).where(table.c.device == device)
        try:
            return bool(self._tables.read(lambda store: store.rows(query)))
        except LichenError:
            return False  # its own page says why

    def close(self) -> None:
        self._tables.close()


def _learns(task: Task) -> str:
    if task.graph is not None:
        return "facts of a knowledge graph"
    targets = [*task.labels, *(one.name for one in task.targets)]
    read = [one.name for one in task.modalities if one.input]
    return one_line(f"{first_few(targets, _NAMED)}; from {first_few(read, _NAMED)}", 300)


def _lasting(one: TaskSummary) -> dict[str, Any]:
    return {key: value for key, value in one.status.items() if key not in {"now", "why_wall"}}
