"""The page of all tasks of the fleet."""

import asyncio
from functools import partial
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.ports import TASKS, ConsolePart, Endpoint, NavigationLink, render
from console.tables.reader import SharedReader
from console.tables.watch import TableWatch
from console.tasks.summaries import IDLE_S, TaskSummaries, TaskSummary
from console.tasks.task_list import TaskList
from console.views.device_views import Services
from console.views.overview import WaitAnswer
from console.views.paging import content_of, unchanged
from runtime.web.events import EventStream

EVENTS: Final = "/events/tasks"
_PERIOD_S: Final = 1.0


class TaskAnswer(BaseModel):
    """One task; ``name``: null: the main one. ``has_begun``: false: its tables are not there yet.

    ``state``: what the process that runs all tasks says of a further one: ``starting``, ``running``, ``done``
    or ``failed``; null: nothing. ``why``: of ``failed``; ``again``: when it is tried again, Unix seconds. The
    rest is as ``GET /tasks/NAME/status`` says it.
    """

    name: str | None
    path: str
    has_begun: bool
    trouble_of_tables: str
    state: str | None
    why: str
    again: float | None
    task: str | None
    method: str
    learns: str
    running: bool | None
    phase: str | None
    round: int | None
    rounds: int | None
    version: int | None
    devices_known: int | None
    devices_online: int | None
    waits: tuple[WaitAnswer, ...]

    @classmethod
    def of(cls, one: TaskSummary, now: float) -> "TaskAnswer":
        """A task as seen at a time, Unix seconds."""
        report = one.report
        keys = ("running", "phase", "round", "rounds", "version", "devices_known", "devices_online")
        return cls(
            name=one.name,
            path="/" if one.name is None else f"{TASKS}/{one.name}",
            has_begun=one.has_begun,
            trouble_of_tables=one.trouble,
            state=None if report is None else report.state,
            why="" if report is None else report.why,
            again=None if report is None else report.again,
            task=one.task,
            method=one.method,
            learns=one.learns,
            waits=tuple(WaitAnswer.of(wait, now) for wait in one.waits),
            **{key: one.status.get(key) for key in keys},
        )


class TasksAnswer(BaseModel):
    """All tasks, the main one first. ``trouble_of_file``: why coordinator.toml cannot be read again now."""

    read_wall: float
    trouble_of_file: str
    tasks: tuple[TaskAnswer, ...]


class TaskOverview:
    """Its page, its operation and its events.

    Args:
        tasks: of the fleet.
        summaries: read them.
        watch: of the main task.
    """

    def __init__(self, tasks: TaskList, summaries: TaskSummaries, watch: TableWatch) -> None:
        self._tasks = tasks
        self._summaries = summaries
        self._watch = watch
        self._events = EventStream()  # of its own: else whoever looks at one task would have all read
        self._reader = SharedReader("tasks", summaries.read, self._events, period_s=_PERIOD_S)

    def part(self) -> ConsolePart:
        """For the application."""
        words = "All tasks of the fleet"
        return ConsolePart(
            routes=[
                Route(TASKS, self._page, methods=["GET"]),
                Route(EVENTS, self._hear, methods=["GET"]),
            ],
            endpoints=[Endpoint("GET", TASKS, words, TasksAnswer, self._list)],
            navigation=[NavigationLink(TASKS, "Tasks", of_fleet=True)],
        )

    def services(self) -> Services:
        """What runs as long as the pages are served."""
        return {"tasks": partial(self._reader.run, at_start=False), "idle-tasks": self._close_idle}

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_S / 3)
            await asyncio.to_thread(self._summaries.close_idle)

    async def _page(self, request: Request) -> Response:
        reading, picture = await self._reader.newest(), self._watch.picture
        state = (picture.trouble, picture.status.get("running"), reading.trouble, self._tasks.trouble)
        shown = content_of(request, reading.revision, state)
        if (same := unchanged(request, shown)) is not None:
            return same
        return render(
            request,
            "tasks.html",
            picture=picture,
            reading=reading,
            rows=reading.value or (),
            of_file=self._tasks.trouble,
            shown=shown,
        )

    async def _list(self, request: Request) -> TasksAnswer:  # noqa: ARG002 - an operation is called with its request
        reading = await self._reader.newest()
        return TasksAnswer(
            read_wall=reading.wall,
            trouble_of_file=self._tasks.trouble,
            tasks=tuple(TaskAnswer.of(one, reading.wall) for one in reading.value or ()),
        )

    async def _hear(self, request: Request) -> Response:  # noqa: ARG002 - a route is called with its request
        return self._events.answer()
