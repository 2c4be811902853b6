"""What a large open fleet leaves behind in each attempt of a round: bytes of log, database and announcements.

A real Mosquitto, a real coordinator process, and one MQTT client that announces as many made-up names as it
is told, none of which delivers anything: so each attempt selects them all and is given up at its deadline.
What the log, the database (its backup apart) and ``b/round`` grow by in an attempt is measured, and how long
a restart takes until the coordinator says where its round stands.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.benchmarks.support.fleet import FLEET, ProcessFleet
from lichen_lab.benchmarks.support.tasks import demo_task
from lichen_lab.simulation.processes import mosquitto
from lichen_lab.simulation.processes.embedded_broker import HOST
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, lichen
from protocol.messages import ModalityState, State, encode
from protocol.tasks.rounds import Rounds
from protocol.topics import Kind, broadcast_topic, device_topic
from runtime.storage.sqlite import open_reader

_MANY: Final = 10_000
_FEW: Final = 200
_ATTEMPT_S: Final = 5.0
_WINDOW: Final = 500
"""Maximum number of states without PUBACK."""
_LIMIT_S: Final = 240.0
_KB: Final = 1000.0
_LOG: Final = "log, KB an attempt"
_DATABASE: Final = "database, KB an attempt"
_LINE: Final = "longest line of the log, bytes"


class _Crowd:
    """One connection that publishes for all names and receives ``b/round``."""

    def __init__(self, port: int) -> None:
        self.said: list[bytes] = []
        self._room = threading.Semaphore(_WINDOW)
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "crowd")
        self._client.on_message = lambda _c, _u, message: self.said.append(bytes(message.payload))
        self._client.on_publish = lambda *_: self._room.release()
        self._client.max_queued_messages_set(0)
        self._client.connect(HOST, port)
        self._client.loop_start()
        self._client.subscribe(broadcast_topic(FLEET, Kind.ROUND), 1)

    def announce(self, names: int) -> None:
        """Publish retained states: all names are online and have data."""
        known = {"acc": ModalityState(windows=(9,) * 7), "gyro": ModalityState(windows=(9,) * 7)}
        for n in range(names):
            name = f"made-up-{n:06}"
            state = State(status="online", device=name, roles=("train",), modalities=known, windows=63)
            self._room.acquire()
            self._client.publish(device_topic(FLEET, name, Kind.STATE), encode(state), 1, retain=True)

    def round(self) -> dict[str, Any]:
        """The last message on ``b/round``."""
        found: dict[str, Any] = json.loads(self.said[-1]) if self.said else {}
        return found

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def _known(config: Path) -> int:
    with contextlib.suppress(ValueError):
        return int(json.loads(_told(config, "status", "--format", "json")).get("devices_known", 0))
    return 0


def _attempts(log: Path) -> int:
    return sum(b'"event": "selected"' in line for line in _lines(log))


def _lines(log: Path) -> Iterator[bytes]:
    with log.open("rb") as file:
        yield from file


def _told(config: Path, *command: str) -> bytes:
    """Output of a command."""
    done = subprocess.run(
        lichen("coordinator", *command, "--config", str(config)), stdout=subprocess.PIPE, check=False
    )
    return done.stdout


def measure(names: int, attempts: int, say: Say) -> dict[str, float]:
    """Announce names, wait for ``attempts`` attempts, and measure log, database and announcements."""
    rounds = Rounds(count=2, deadline_s=_ATTEMPT_S, min_devices=1, min_windows=1)
    with ProcessFleet(demo_task().model_copy(update={"rounds": rounds})) as fleet:
        fleet.start(BROKER, mosquitto.command(fleet.root / "broker", HOST, fleet.port))
        state = fleet.coordinator(export={"enabled": False}, spread_s=4.0, devices={"most": max(names, 100)})
        config, log, database = (
            fleet.files.config(COORDINATOR),
            fleet.files.log(COORDINATOR),
            state / "coordinator.sqlite3",
        )
        fleet.until(lambda: "round 1" in fleet.said(COORDINATOR), _LIMIT_S, "there is a first model")
        crowd, began = _Crowd(fleet.port), time.monotonic()
        crowd.announce(names)
        fleet.until(lambda: _known(config) >= names, _LIMIT_S, "all names are known")
        say(f"{names:,} names were known after {time.monotonic() - began:.0f} s")
        first = _attempts(log)
        fleet.until(lambda: _attempts(log) > first, _LIMIT_S, "an attempt begins")
        before = log.stat().st_size, _size(database), _attempts(log)
        fleet.until(lambda: _attempts(log) >= before[2] + attempts, _LIMIT_S, "attempts have gone by")
        seen = _attempts(log) - before[2]
        figures = {
            _LOG: (log.stat().st_size - before[0]) / _KB / seen,
            _DATABASE: max(0, _size(database) - before[1]) / _KB / seen,
            _LINE: float(max(map(len, _lines(log)))),
            "b/round, bytes": float(max(map(len, crowd.said))),
            "status --why, bytes": float(len(_told(config, "status", "--why"))),
            "history --format json, KB": len(_told(config, "history", "--format", "json")) / _KB,
            "database, MB": _size(database) / _KB**2,
        }
        figures["a restart, s"] = _restart(fleet, crowd)
        crowd.close()
    return figures


def _size(database: Path) -> int:
    """Bytes of used pages, including those only in the write-ahead log."""
    with closing(open_reader(database)) as tables:
        pages, free, size = (
            int(tables.execute(f"PRAGMA {what}").fetchone()[0])
            for what in ("page_count", "freelist_count", "page_size")
        )
    return (pages - free) * size


def _restart(fleet: ProcessFleet, crowd: _Crowd) -> float:
    """Seconds from the start of the process until it publishes its round."""
    fleet.kill(COORDINATOR)
    crowd.said.clear()
    began = time.monotonic()
    fleet.start(COORDINATOR)
    fleet.until(
        lambda: crowd.round().get("phase") not in {None, "stopped", "offline"}, _LIMIT_S, "it is back"
    )
    return time.monotonic() - began


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """10,000 names and four attempts; quick: 200 names and two."""
    started = time.perf_counter()
    names, attempts = (_FEW, 2) if quick else (_MANY, 4)
    figures = measure(names, attempts, say)
    taken = time.perf_counter() - started
    return [
        row(f"{names:,} made-up names", "open fleet", f"{attempts} attempts", name, [value], seconds=taken)
        for name, value in figures.items()
    ]


BENCH: Final = Bench(
    name="names",
    run=run,
    goals=(Goal(_LOG, 20), Goal(_DATABASE, 500), Goal(_LINE, 3000)),
)
