"""The tables of a fleet of any size, written as the coordinator writes them, and the console over them."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import sqlalchemy as sa

from console.app import Console
from console.open_access import LoopbackViewers
from console.ports import ConsolePart
from console.tables.connection import TablesConnection
from console.tables.marks import MARKS
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.device_views import AdmissionViews, DeviceViews
from console.views.rounds import RoundPages
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.messages import ModalityState, State
from protocol.rollout import Hindrance, TrialReport
from runtime.web.events import EventStream
from tests.support.coordinator.fake import settings_for, tiny_task

DIGEST = "ab" * 32
_SITES = ("barn", "stable", "mill", "field")


def made_settings(folder: Path, **changes: object) -> CoordinatorSettings:
    """Settings whose state folder exists."""
    settings = settings_for(folder, 1, **changes)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    return settings


def state_of(number: int, name: str = "", **changes: Any) -> State:
    """A device's state; neighbours differ in everything that a list shows."""
    device = name or f"device-{number:05d}"
    modalities = {
        modality: ModalityState(
            windows=(number % 50, number % 7),
            quality=None if number % 11 == 0 else round((number * 37 % 100) / 100, 2),
            missing=(number % 5) / 10,
            reasons=("clipped",) if number % 9 == 0 else (),
        )
        for modality in ("acc", "gyro")[: 1 + number % 2]
    }
    given: dict[str, Any] = {
        "status": ("online", "online", "online", "offline", "stopped")[number % 5],
        "device": device,
        "roles": ("observe", "train")[: 1 + number % 2],
        "modalities": modalities,
        "windows": number % 100,
        "version": "0.1.0",
        "labels": {"site": _SITES[number % 4], "line": f"L{number % 3}"},
    }
    if number % 3:
        given["model"] = DIGEST
    if number % 17 == 0:
        given["hindered"] = Hindrance(why=f"/var/lib/lichen/cache: no space left ({number} kB free)")
    if number % 13 == 0:
        given["trial"] = TrialReport(version=3, bundle=DIGEST, phase="trial", measures={"windows": 4.0})
    return State.model_validate(given | changes)


def store_states(store: Database, states: Iterable[State], wall: float | None = None) -> None:
    """Store states as the state receiver does, through the registry's own rows."""
    now = [time.time() if wall is None else wall]
    registry = DeviceRegistry(store, lambda: now[0])
    rows = []
    for number, state in enumerate(states):
        now[0] = (time.time() if wall is None else wall) - number % 4000
        registry.update(state)
        rows.append(registry.row(state.device))
    store.put_all(schema.devices, rows)


def store_fleet(settings: CoordinatorSettings, states: Sequence[State]) -> None:
    """A coordinator's tables with its task and these devices."""
    with settings.location.database() as store:
        now = time.time()
        store.put_meta(
            {"task": tiny_task().model_dump_json(), "fleet": settings.fleet, "why": "", "why_wall": str(now)}
        )
        store.put_meta({"rounds_now": str(now)})
        store.put(schema.exports, version=2, wall=now, digest=DIGEST, size=10, metrics={})
        store_states(store, states)


def statements(connection: TablesConnection) -> list[tuple[str, Any]]:
    """A list to which every statement of an open connection is added, with its parameters."""
    found: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, words: str, values: Any, *_: Any) -> None:
        found.append((words, values))

    store = connection._store
    assert store is not None
    sa.event.listen(store.engine.engine, "before_cursor_execute", note)
    return found


async def one_task(device: str) -> tuple[str | None, ...]:
    """Of a fleet that has no further task."""
    del device
    return ()


class ConsoleBench:
    """The console's application with its parts about devices, and a client of this machine."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self.events = EventStream()
        self.tables = TablesConnection(settings.location)
        self.watch = TableWatch(settings, self.tables, self.events, MARKS)
        readings = SharedReadings(self.tables, self.watch)
        self.views = DeviceViews(settings, self.watch, readings, self.events, one_task)
        self.admission = AdmissionViews(settings, self.watch, self.views, self.events)
        rounds = RoundPages(self.watch, readings).part()
        parts = [*self.views.parts(), *self.admission.parts(), rounds, ConsolePart(assets=["console"])]
        self.console = Console(LoopbackViewers(), parts, ["console"], given={"fleet": settings.fleet})
        transport = httpx2.ASGITransport(
            app=self.console.asgi, client=("127.0.0.1", 1), raise_app_exceptions=False
        )
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://console")

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        return await self.client.get(path, headers=headers)

    async def json(self, path: str) -> Any:
        answer = await self.client.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return json.loads(answer.text)


@asynccontextmanager
async def console_of(settings: CoordinatorSettings) -> AsyncIterator[ConsoleBench]:
    """A console that has looked once whether the coordinator runs; nothing runs in the background."""
    made = ConsoleBench(settings)
    try:
        await made.watch.read()
        yield made
    finally:
        await made.client.aclose()
        made.views.close()
        made.tables.close()
