"""What an update costs in rounds of 100, 1,000 and 10,000 devices, and a start with 100,000 known ones.

A real coordinator and a real Mosquitto; the devices share a few MQTT connections in one process
(``benchmarks.support.crowd``). All updates of a round are sent at once. The round closes after the
measurement, so its fold is not in the figures. Broker, coordinator and devices share this machine's cores.
"""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import fmean
from typing import IO, Any, Final

import numpy as np
import psutil

from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.benchmarks.suite.coordinator.fan_in import fleet_task, templates, usage
from lichen_lab.benchmarks.support import crowd
from lichen_lab.benchmarks.support.fleet import FLEET, ProcessFleet
from lichen_lab.simulation.processes import mosquitto
from lichen_lab.simulation.processes.embedded_broker import HOST, free_port
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR
from protocol.errors import Transient
from protocol.messages import ModalityState, State

_SIZES: Final = (100, 1_000, 10_000)
_QUICK: Final = (20, 100)
_KNOWN: Final = 100_000
_ROUNDS: Final = 3
_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.05
CPU: Final = "coordinator CPU ms an update"
RATE: Final = "updates/s acknowledged and durable"
_RSS: Final = "coordinator RSS, MB"
_STALL: Final = "longest loop stall, ms"
_START: Final = "start, s"


Beside = Callable[[ProcessFleet], AbstractContextManager[object]]
"""What runs beside the storms; it is entered when the coordinator has started."""


def measure(
    devices: int, rounds: int, say: Say, beside: Beside = contextlib.nullcontext
) -> list[dict[str, Any]]:
    """Play rounds of so many devices; one report a round: the crowd's figures and the coordinator's.

    Args:
        devices: that send an update in each round.
        rounds: how many.
        say: takes a line about each round.
        beside: what runs at the same time.

    Raises:
        Transient: updates were refused, or have no receipt in time.
    """
    task, metrics = fleet_task(devices + 1, rounds), free_port()
    with ProcessFleet(task) as fleet:
        fleet.start(BROKER, mosquitto.command(fleet.root / "broker", HOST, fleet.port))
        _start(fleet, metrics, devices + 1)
        files, process = templates(task, fleet.root), psutil.Process(fleet.pid(COORDINATOR))
        args = {"fleet": FLEET, "port": fleet.port, "devices": devices + 1, "frames": files, "rounds": rounds}
        reports: list[dict[str, Any]] = []
        with beside(fleet), _crowd(fleet, args | {"limit_s": _LIMIT_S}) as (lines, answers):
            before: dict[str, float] = {}
            for line in lines:
                if "ready" in line:
                    before = usage(process, metrics)
                    continue
                after = usage(process, metrics)
                line["used"] = {name: after[name] - before[name] for name in after}
                line |= {"rss": after["rss"], "stall_s": after["stall_s"]}
                reports.append(line)
                say(f"{devices} devices, round {line['round']}: {line['seconds']:.2f} s")
                answers.write("\n")
                answers.flush()
    refused = [one for report in reports for one in report["refused"]]
    if refused or len(reports) < rounds:
        raise Transient(f"{len(reports)} of {rounds} rounds were played; refused: {refused[:3]}")
    return reports


def _start(fleet: ProcessFleet, metrics: int, devices: int) -> None:
    fleet.coordinator(
        export={"enabled": False},
        spread_s=2.0,
        log={"level": "warning"},
        devices={"most": devices},
        metrics={"prometheus_port": metrics},
    )


@contextmanager
def _crowd(fleet: ProcessFleet, args: dict[str, Any]) -> Iterator[tuple[Iterator[dict[str, Any]], IO[str]]]:
    """The devices' process: the lines that it prints, and its input."""
    file, errors = fleet.root / "crowd.json", fleet.root / "crowd.log"
    file.write_text(json.dumps(args))
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", crowd.__name__, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield (json.loads(line) for line in process.stdout or ()), process.stdin or sys.stdout
        if process.wait(_LIMIT_S) != 0:
            raise Transient(f"the devices ended with {process.returncode}: {errors.read_text()[-1000:]}")
    finally:
        process.kill()
        process.communicate()


def start_with_known(devices: int, say: Say) -> tuple[float, float]:
    """Start a coordinator that knows so many devices: seconds until its metrics answer, and resident bytes.

    Raises:
        Transient: that takes too long.
    """
    metrics = free_port()
    with ProcessFleet(fleet_task(devices, 1)) as fleet:
        fleet.start(BROKER, mosquitto.command(fleet.root / "broker", HOST, fleet.port))
        folder = fleet.files.state(COORDINATOR)
        folder.mkdir(parents=True, exist_ok=True)
        with Database(folder / DATABASE) as store, store.transaction() as connection:
            connection.execute(schema.devices.insert(), [_row(n) for n in range(devices)])
        begun = time.perf_counter()
        _start(fleet, metrics, devices)
        process = psutil.Process(fleet.pid(COORDINATOR))
        while True:
            try:
                used = usage(process, metrics)
                break
            except urllib.error.URLError:
                if time.perf_counter() - begun > _LIMIT_S:
                    raise Transient(f"the coordinator says nothing for {_LIMIT_S:g} s") from None
                time.sleep(_POLL_S)
        seconds = time.perf_counter() - begun
    say(f"{devices} known devices: started in {seconds:.1f} s, {used['rss'] / 1e6:.0f} MB")
    return seconds, used["rss"]


def _row(n: int) -> dict[str, Any]:
    name, known = f"device-{n:06d}", {"accel": ModalityState(windows=(9, 9, 9)), "gyro": ModalityState()}
    state = State(status="online", device=name, roles=("train",), modalities=known, windows=27)
    return {"device": name, "state": state.model_dump(mode="json", exclude_none=True), "wall": time.time()}


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three storms each of 100, 1,000 and 10,000 devices; a start with 100,000. Quick: 20, 100; 1,000."""
    begun, rows = time.perf_counter(), list[ResultRow]()
    costs: dict[int, float] = {}
    for devices in _QUICK if quick else _SIZES:
        reports = measure(devices, 1 if quick else _ROUNDS, say)
        figures = storm_figures(devices, reports)
        costs[devices] = fmean(figures[CPU])
        rows += [_result(f"{devices:,} devices", name, values, begun) for name, values in figures.items()]
    first, *_, last = sorted(costs)
    ratio = "CPU an update, most devices over fewest"
    rows.append(_result("storm", ratio, [costs[last] / costs[first]], begun))
    known = 1_000 if quick else _KNOWN
    seconds, rss = start_with_known(known, say)
    rows.append(_result(f"{known:,} known devices", _START, [seconds], begun))
    rows.append(_result(f"{known:,} known devices", _RSS, [rss / 1e6], begun))
    return rows


def _result(setting: str, metric: str, values: list[float], begun: float) -> ResultRow:
    return row("prototypes", "qqr", setting, metric, values, seconds=time.perf_counter() - begun)


def storm_figures(devices: int, reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Metric -> its value in each round, from the reports of :func:`measure`."""
    return {
        RATE: [devices / report["seconds"] for report in reports],
        CPU: [1e3 * report["used"]["cpu_s"] / devices for report in reports],
        "publish to receipt, 99 %, s": [float(np.quantile(report["took_s"], 0.99)) for report in reports],
        "updates in a transaction": [devices / report["used"]["update_groups"] for report in reports],
        _RSS: [report["rss"] / 1e6 for report in reports],
        _STALL: [1e3 * report["stall_s"] for report in reports],
        "updates sent again": [float(report["again"]) for report in reports],
    }


BENCH: Final = Bench(
    name="scale",
    run=run,
    goals=(
        Goal(RATE, 1_000, above=True, setting="10,000 devices"),
        Goal(CPU, 0.8, setting="10,000 devices"),
        Goal(_RSS, 200, setting="10,000 devices"),
        Goal(_STALL, 100, setting="10,000 devices"),
        Goal("CPU an update, most devices over fewest", 1.3),
        Goal(_START, 10),
    ),
)
