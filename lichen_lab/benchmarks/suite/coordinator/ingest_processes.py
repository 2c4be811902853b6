"""A storm of updates into one process, into a leader with one ingest process, and with two.

The fleet and its updates are those of ``lichen bench fanin``. Broker, devices and all processes share this
machine's cores, so the rate says little about more machines; the CPU time of an update in each process does:
a machine takes as many updates a second as its cores have time for.
"""

import time
from typing import Any, Final

import psutil

from lichen_lab.benchmarks.result import Bench, ResultRow, Say, row
from lichen_lab.benchmarks.suite.coordinator.fan_in import fleet_task, swarm_process, templates
from lichen_lab.benchmarks.support.fleet import FLEET, ProcessFleet
from lichen_lab.simulation.processes import mosquitto
from lichen_lab.simulation.processes.embedded_broker import HOST
from lichen_lab.simulation.processes.fleet_files import write_toml
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, lichen
from protocol.errors import Transient

_MANY: Final = 1000
_FEW: Final = 100
_STORMS: Final = 3
_LIMIT_S: Final = 180.0
_LEAD: Final = "lead"


def measure(devices: int, storms: int, ingest: int, say: Say) -> list[dict[str, Any]]:
    """Run the fleet; one report a storm.

    Args:
        devices: that send at once.
        storms: one after the other.
        ingest: processes that accept updates, beside one that leads; 0: one process does everything.
        say: prints progress.

    Raises:
        Transient: an update was refused, or the devices ended.
    """
    task = fleet_task(devices, storms)
    with ProcessFleet(task) as fleet:
        fleet.start(BROKER, mosquitto.command(fleet.root / "broker", HOST, fleet.port))
        tables = {"export": {"enabled": False}, "spread_s": 5.0, "log": {"level": "warning"}}
        config = fleet.files.config(COORDINATOR)
        write_toml(config, fleet.files.coordinator(**tables))
        roles = {_LEAD: "lead" if ingest else "serve"} | {f"ingest-{n}": "ingest" for n in range(ingest)}
        for name, role in roles.items():
            fleet.start(name, lichen("coordinator", role, "--config", str(config)))
        watched = {name: psutil.Process(fleet.pid(name)) for name in (*roles, BROKER)}
        args = {
            "fleet": FLEET,
            "port": fleet.port,
            "devices": devices,
            "frames": templates(task, fleet.root),
            "rates": [0.0] * storms,
            "limit_s": _LIMIT_S,
        }
        reports: list[dict[str, Any]] = []
        with swarm_process(fleet, args) as lines:
            before: dict[str, float] = {}
            for line in lines:
                after = {name: _cpu_s(process) for name, process in watched.items()}
                if "ready" not in line:
                    if line["refused"]:
                        raise Transient(f"updates were refused: {line['refused']}")
                    line["cpu_s"] = {name: after[name] - before[name] for name in after}
                    reports.append(line)
                    say(f"{ingest} ingest: {devices} receipts in {line['seconds']:.2f} s")
                before = after
    return reports


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def figures(devices: int, reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    """What a storm cost, by process."""
    ingest = [[s for name, s in one["cpu_s"].items() if name.startswith("ingest")] for one in reports]
    found = {
        "updates/s acknowledged and durable": [devices / one["seconds"] for one in reports],
        "leader CPU ms an update": [1e3 * one["cpu_s"][_LEAD] / devices for one in reports],
        "broker CPU ms an update": [1e3 * one["cpu_s"][BROKER] / devices for one in reports],
    }
    if all(ingest):
        found["ingest CPU ms an update"] = [1e3 * sum(parts) / devices for parts in ingest]
        found["busiest ingest process, share"] = [max(parts) / sum(parts) for parts in ingest]
    return found


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Storms of 1,000 devices; quick: one storm of 100."""
    devices, storms = (_FEW, 1) if quick else (_MANY, _STORMS)
    rows: list[ResultRow] = []
    for ingest, setting in ((0, "serve"), (1, "lead and 1 ingest"), (2, "lead and 2 ingest")):
        started = time.perf_counter()
        reports = measure(devices, storms, ingest, say)
        seconds = time.perf_counter() - started
        rows += [
            row(f"{devices:,} devices", "qqr", setting, metric, values, seconds=seconds)
            for metric, values in figures(devices, reports).items()
        ]
    return rows


BENCH: Final = Bench(
    name="ingest",
    run=run,
    goals=(),
)
