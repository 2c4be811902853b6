"""A console over prepared tables: a fleet of any size and its versions, with made-up names and numbers."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from lichen_lab.benchmarks.suite.coordinator.fan_in import fleet_task
from lichen_lab.benchmarks.support.fleet import FLEET, ProcessFleet
from lichen_lab.simulation.processes.embedded_broker import HOST, free_port
from lichen_lab.simulation.processes.fleet_files import write_toml
from lichen_lab.simulation.processes.testbed import COORDINATOR, lichen
from protocol.messages import ModalityState, State
from protocol.tasks.task import Task

_CONSOLE: Final = "console"
_ANSWER_S: Final = 60.0
_LABELS: Final = 6
_HOUR_S: Final = 3600.0


def device_name(n: int) -> str:
    """Of the device with that number."""
    return f"device-{n:06d}"


def device_row(n: int, **labels: str) -> dict[str, Any]:
    """A row of ``schema.devices``; neighbours differ in what a list shows."""
    known = {
        name: ModalityState(windows=(n % 50, n % 7), quality=(n * 37 % 100) / 100, missing=n % 5 / 10)
        for name in ("accelerometer", "gyroscope")[: 1 + n % 2]
    }
    state = State(
        status=("online", "online", "online", "offline", "stopped")[n % 5],
        device=device_name(n),
        roles=("observe", "train")[: 1 + n % 2],
        modalities=known,
        windows=n % 100,
        labels={"site": ("barn", "stable", "mill", "field")[n % 4], **labels},
    )
    heard = time.time() - (0 if labels else n % _HOUR_S)
    return {"device": state.device, "state": state.model_dump(mode="json", exclude_none=True), "wall": heard}


def version_row(version: int) -> dict[str, Any]:
    """A row of ``schema.versions`` with scores, a loss and a confusion of six classes."""
    score = 1 - 1 / (version + 2)
    return {
        "version": version,
        "manifest": f"{version + 1:064x}",
        "parent": f"{version:064x}" if version else None,
        "wall": time.time(),
        "devices": [device_name(n) for n in range(version % 100)],
        "metrics": {"accuracy": score, "macro_f1": score - 0.05, "loss": 1 / (version + 1), "windows": 600.0},
        "confusion": [[96 if i == k else 1 for k in range(_LABELS)] for i in range(_LABELS)],
        "bytes_up": version * 5_000_000,
        "bytes_down": version * 20_000_000,
        "trouble": "",
    }


@dataclass(frozen=True)
class PreparedConsole:
    """A console that answers, and its tables, which a measure writes as a coordinator would."""

    url: str
    store: Database

    def replace_device(self, row: dict[str, Any]) -> None:
        """Write a newer state of a known device."""
        table = schema.devices
        with self.store.transaction() as connection:
            connection.execute(table.update().where(table.c.device == row["device"]).values(**row))

    def add_version(self, version: int) -> None:
        """Write a new version."""
        with self.store.transaction() as connection:
            connection.execute(schema.versions.insert(), [version_row(version)])


def _write(store: Database, task: Task, devices: int, versions: int) -> None:
    now = str(time.time())
    about = {"task": task.model_dump_json(), "fleet": FLEET, "why": "", "why_wall": now, "rounds_now": now}
    store.put_meta(about)
    with store.transaction() as connection:
        connection.execute(schema.devices.insert(), [device_row(n) for n in range(devices)])
        connection.execute(schema.versions.insert(), [version_row(n) for n in range(versions)])


def start_console(fleet: ProcessFleet) -> str:
    """Start ``lichen console serve`` of a fleet whose coordinator has its configuration; returns its URL."""
    listen = f"{HOST}:{free_port()}"
    config = str(fleet.files.config(COORDINATOR))
    fleet.start(_CONSOLE, lichen("console", "serve", "--config", config, "--listen", listen))
    fleet.until(lambda: _answers(f"http://{listen}/devices"), _ANSWER_S, "the console answers")
    return f"http://{listen}"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 - our own http address
            return bool(answer.status == 200)  # noqa: PLR2004 - HTTP: OK
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def prepared_console(devices: int, versions: int) -> Iterator[PreparedConsole]:
    """A console over the tables of a fleet whose coordinator does not run.

    Raises:
        Transient: it does not answer in time.
    """
    task = fleet_task(devices, 1)
    with ProcessFleet(task) as fleet:
        folder = fleet.files.state(COORDINATOR)
        folder.mkdir(parents=True, exist_ok=True)
        write_toml(fleet.files.config(COORDINATOR), fleet.files.coordinator())
        with Database(folder / DATABASE) as store:
            _write(store, task, devices, versions)
            yield PreparedConsole(start_console(fleet), store)
