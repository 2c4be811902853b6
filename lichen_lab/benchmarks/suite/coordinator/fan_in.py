"""A thousand devices' prototype updates through Mosquitto into one coordinator.

A real coordinator process and a real Mosquitto; the devices are simulated in one process of their own, each
with its MQTT connection (``benchmarks.support.swarm``). Updates are the agent's own frames, prototypes at 4
bits. In a *storm* all devices send at once: the time of an update is mostly that in which it waits for its
turn. At a *rate* it is what one update takes. An update counts when the device holds its receipt: journaled
and synced. Broker, coordinator and devices share this machine's cores.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.benchmarks.support import swarm
from lichen_lab.benchmarks.support.fleet import FLEET, ProcessFleet
from lichen_lab.benchmarks.support.tasks import demo_task, noise_windows
from lichen_lab.simulation.data.streams import Fixed
from lichen_lab.simulation.processes import mosquitto
from lichen_lab.simulation.processes.embedded_broker import HOST, free_port
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR
from lichen_lab.simulation.training.runner import VirtualDevice
from models import registry
from models.contract import ClientContext
from protocol.errors import Transient
from protocol.frames.frame import digest
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task

_MANY: Final = 1000
_FEW: Final = 100
_TEMPLATES: Final = 8
_STORMS: Final = 5
_RATE: Final = 50.0
"""Updates a second in the rounds with a fixed rate."""
_LIMIT_S: Final = 180.0
_STORM: Final = "storm"
_SCRAPE_S: Final = 30.0
_TOLD: Final = ("disk_syncs", "disk_bytes", "update_groups")
_ACKNOWLEDGED: Final = "updates/s acknowledged and durable"


def fleet_task(devices: int, rounds: int) -> Task:
    """SPAR's shapes with 4-bit prototypes only; a round closes when all devices have delivered."""
    return demo_task().model_copy(
        update={
            "rounds": Rounds(count=rounds, deadline_s=600.0, min_devices=devices, min_windows=1),
            "config": {"upload": "prototypes", "prototype_bits": 4},
        }
    )


def templates(task: Task, folder: Path) -> list[str]:
    """Write different updates of real training; the swarm puts its device names into their headers."""
    client = registry.method(task.method).client()
    state = client.initial(task, 0)
    files = []
    for seed in range(_TEMPLATES):
        windows = noise_windows(task, 64, seed)
        context = ClientContext(task, f"device-{seed:04d}", 1, seed)
        result = client.train(context, windows, state, {})
        frame = VirtualDevice(context.device, Fixed(windows)).pack(context, windows, result, digest(b"base"))
        (folder / f"{seed}.frame").write_bytes(frame)
        files.append(str(folder / f"{seed}.frame"))
    return files


@contextmanager
def swarm_process(fleet: ProcessFleet, args: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
    """The devices; yields what they print, one object a line.

    Raises:
        Transient: they ended before the last round was over; the message ends with what they said.
    """
    file, errors = fleet.root / "swarm.json", fleet.root / "swarm.log"
    file.write_text(json.dumps(args))
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", swarm.__name__, str(file)], stdout=subprocess.PIPE, stderr=log
        )
    try:
        yield _lines(process, errors)
    finally:
        process.kill()
        process.communicate()


def _lines(process: "subprocess.Popen[bytes]", errors: Path) -> Iterator[dict[str, Any]]:
    for line in process.stdout or ():
        yield json.loads(line)
    if process.wait() != 0:
        raise Transient(f"the devices ended with status {process.returncode}: {errors.read_text()[-1500:]}")


def measure(devices: int, storms: int, say: Say) -> list[dict[str, Any]]:
    """Run the fleet; one report a round: the swarm's figures and the coordinator's use of resources."""
    rates = [*([0.0] * storms), _RATE]
    task, metrics = fleet_task(devices, len(rates)), free_port()
    with ProcessFleet(task) as fleet:
        fleet.start(BROKER, mosquitto.command(fleet.root / "broker", HOST, fleet.port))
        fleet.coordinator(
            export={"enabled": False},
            spread_s=5.0,
            offer_every_s=60.0,
            log={"level": "warning"},
            metrics={"prometheus_port": metrics},
        )
        say("training the updates that will be sent")
        files = templates(task, fleet.root)
        coordinator = psutil.Process(fleet.pid(COORDINATOR))
        args = {
            "fleet": FLEET,
            "port": fleet.port,
            "devices": devices,
            "frames": files,
            "rates": rates,
            "limit_s": _LIMIT_S,
        }
        reports: list[dict[str, Any]] = []
        with swarm_process(fleet, args) as lines:
            before: dict[str, float] = {}
            for line in _while_running(fleet, lines):
                if "ready" in line:
                    before = usage(coordinator, metrics)
                    continue
                after = usage(coordinator, metrics)
                line["used"] = {name: after[name] - before[name] for name in after}
                line["rss"] = (before["rss"], after["rss"])
                reports.append(line)
                speed = devices / line["seconds"]
                say(f"round {line['round']}: {devices} receipts in {line['seconds']:.2f} s ({speed:.0f}/s)")
    _check(reports)
    return reports


def _while_running(fleet: ProcessFleet, lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the devices print; if they wait in vain, the reason may be in the coordinator's log."""
    try:
        yield from lines
    except Transient as error:
        raise Transient(f"{error}; the coordinator's log ends: {fleet.said(COORDINATOR)[-1500:]}") from None


def usage(process: psutil.Process, port: int) -> dict[str, float]:
    """CPU seconds, resident bytes and bytes written of the process, without its worker.

    ``stall_s``: the longest stall of its event loop since the last call.
    """
    used = process.cpu_times()
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=_SCRAPE_S) as answer:
        page = answer.read().decode()
    told = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("lichen_"))
    return {
        "cpu_s": used.user + used.system,
        "rss": float(process.memory_info().rss),
        "stall_s": float(told["lichen_loop_stall_seconds"]),
        **{name: float(told[f"lichen_{name}_total"]) for name in _TOLD},
    }


def _check(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        if report["refused"]:
            raise Transient(f"round {report['round']}: updates were refused: {report['refused']}")


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Five storms of 1,000 devices, then 50 updates a second; quick: one storm of 100."""
    started = time.perf_counter()
    devices, storms = (_FEW, 1) if quick else (_MANY, _STORMS)
    reports = measure(devices, storms, say)
    taken = time.perf_counter() - started
    dataset = f"{devices:,} devices, {reports[0]['bytes']:,} bytes an update"
    rows: list[ResultRow] = []
    for setting, some in ((_STORM, reports[:storms]), (f"{_RATE:g} updates a second", reports[storms:])):
        rows += [
            row(dataset, "qqr", setting, metric, values, seconds=taken)
            for metric, values in _figures(devices, some).items()
        ]
    return rows


def _figures(devices: int, reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    times = [np.sort(report["took_s"]) for report in reports]
    return {
        _ACKNOWLEDGED: [devices / report["seconds"] for report in reports],
        "publish to receipt, median, ms": [1e3 * float(np.quantile(t, 0.5)) for t in times],
        "publish to receipt, 99 %, ms": [1e3 * float(np.quantile(t, 0.99)) for t in times],
        "coordinator CPU ms an update": [1e3 * report["used"]["cpu_s"] / devices for report in reports],
        "syncs an update": [report["used"]["disk_syncs"] / devices for report in reports],
        "updates in a transaction": [devices / report["used"]["update_groups"] for report in reports],
        "KB given to the disk an update": [
            report["used"]["disk_bytes"] / devices / 1e3 for report in reports
        ],
        "coordinator RSS before, MB": [report["rss"][0] / 1e6 for report in reports],
        "coordinator RSS after, MB": [report["rss"][1] / 1e6 for report in reports],
        "updates sent again": [float(report["again"]) for report in reports],
    }


BENCH: Final = Bench(
    name="fanin",
    run=run,
    goals=(Goal(_ACKNOWLEDGED, 100, above=True, setting=_STORM),),
)
