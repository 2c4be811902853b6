"""The console's application over a coordinator's tables, asked by Starlette's client."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import sqlalchemy as sa

from console.app import Console
from console.ports import ConsolePart, Role, Viewer
from console.tables.bundle_files import BundleFiles
from console.tables.connection import TablesConnection
from console.tables.marks import MARKS
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.evaluations.device_evaluations import DeviceEvaluationPages
from console.views.overview import Overview
from console.views.rollouts import RolloutPages
from console.views.rounds import RoundPages
from console.views.versions import VersionPages
from coordinator.config.coordinator import CoordinatorSettings
from runtime.web.events import EventStream


class Everyone:
    """Whoever asks is a viewer."""

    routes = ()
    sign_in = "/"

    async def who(self, _request: object) -> Viewer:
        return Viewer("someone", Role.VIEWER)


class Served:
    """The application with all looking parts; ``statements`` counts what is asked of the tables."""

    def __init__(self, settings: CoordinatorSettings, more: Iterable[ConsolePart] = ()) -> None:
        self.tables = TablesConnection(settings.location)
        self.events = EventStream()
        self.watch = TableWatch(settings, self.tables, self.events, MARKS)
        readings = SharedReadings(self.tables, self.watch)
        parts = [
            Overview(settings, self.watch, readings, self.events).part(),
            RoundPages(self.watch, readings).part(),
            VersionPages(self.watch, readings, BundleFiles(settings), settings.fleet).part(),
            DeviceEvaluationPages(self.watch, readings).part(),
            RolloutPages(settings, self.watch, readings).part(),
            *more,
        ]
        app = Console(Everyone(), parts, ["testserver"], given={"fleet": settings.fleet}).asgi
        self.client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://testserver"
        )
        self.statements = 0

    async def page(self, path: str, status: int = 200, **headers: str) -> str:
        answer = await self.client.get(path, headers=headers)
        assert answer.status_code == status, answer.text[:2000]
        return answer.text

    async def json(self, path: str, status: int = 200) -> Any:
        answer = await self.client.get(f"/api/v1{path}")
        assert answer.status_code == status, answer.text[:2000]
        return answer.json()

    def count(self, *_: object) -> None:
        self.statements += 1


@asynccontextmanager
async def served(settings: CoordinatorSettings, *more: ConsolePart) -> AsyncIterator[Served]:
    """The application, its tables read once."""
    one = Served(settings, more)
    sa.event.listen(sa.Engine, "before_cursor_execute", one.count)
    try:
        await one.watch.read(marked=True)
        yield one
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", one.count)
        await one.client.aclose()
        one.tables.close()
