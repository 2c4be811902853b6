"""An observing agent: what its environment without torch weighs, its memory, and how soon it predicts.

The whole loop runs first: one agent trains one round, the coordinator exports, and the observing agent pulls
the bundle over MQTT and predicts on a replayed stream. Memory is that of all its processes together, as PSS:
pages that they share count once. Then it is started again and again: it finds its model on its disk.
"""

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.suite.serving import WHERE
from lichen_lab.benchmarks.support.fleet import ProcessFleet, noise_recording
from lichen_lab.benchmarks.support.tasks import demo_task
from lichen_lab.simulation.processes.environment import Environment, environment, memory_mb, memory_of_tree
from protocol.errors import Transient
from protocol.tasks.rounds import Rounds

_MB: Final = 1e6
_MEMORY: Final = "PSS of all its processes, predicting, MB"
_START: Final = "from exec to the first prediction, s"
_LOADED_S: Final = 180.0
_PROBE_S: Final = 60.0
_PREDICTIONS: Final = 30
_WATCHER: Final = "watcher"
_WINDOWS: Final = 200
_STARTS: Final = 3
_TOOLS: Final = ("pip", "setuptools")
"""Distributions of every virtual environment, of which nothing runs."""
_INSIDE: Final = """
import importlib.metadata, json, pathlib, sysconfig
place = pathlib.Path(sysconfig.get_path("purelib"))
found = {d.name: sum(f.locate().stat().st_size for f in d.files or () if f.locate().is_file())
         for d in importlib.metadata.distributions()}
whole = sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
print(json.dumps({"packages": found, "bytes": whole}))
"""


def _contents(place: Environment) -> tuple[dict[str, float], float]:
    """Megabytes of the distributions installed there, and of the whole site-packages.

    Raises:
        Transient: its interpreter did not answer.
    """
    done = subprocess.run(
        [str(place.python), "-P", "-c", _INSIDE],
        capture_output=True,
        text=True,
        timeout=_PROBE_S,
        check=False,
    )
    if done.returncode != 0:
        raise Transient(f"{place.python} did not list its packages: {done.stderr[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    sizes = {name: size / _MB for name, size in found["packages"].items() if name not in _TOOLS}
    tools = sum(size / _MB for name, size in found["packages"].items() if name in _TOOLS)
    return sizes, found["bytes"] / _MB - tools


def _lines(file: Path) -> int:
    return file.read_text().count("\n") if file.is_file() else 0


def _by_process(pid: int) -> dict[str, float]:
    """PSS in MB of a process and its descendants, summed by name."""
    found: dict[str, float] = {}
    for at, (name, pss, _) in enumerate(memory_of_tree(pid)):
        key = name if at else "agent"
        found[key] = found.get(key, 0.0) + pss
    return found


def _observer(fleet: ProcessFleet, place: Environment, isolation: str, file: Path, speed: float) -> int:
    """Start the agent; returns its process id."""
    fleet.agent(
        _WATCHER,
        file,
        speed=speed,
        command=place.command,
        roles=["observe"],
        infer={"output": str(fleet.root / "predictions.jsonl"), "isolation": isolation},
        source=[{"kind": "replay", "file": str(file), "speed": speed, "loop": True}],
    )
    return fleet.pid(_WATCHER)


def _start_s(fleet: ProcessFleet, place: Environment, isolation: str, file: Path) -> float:
    """Seconds from ``exec`` until a prediction is on disk; the stream is read without waiting."""
    output = fleet.root / "predictions.jsonl"
    output.unlink(missing_ok=True)
    began = time.perf_counter()
    _observer(fleet, place, isolation, file, 1000.0)
    fleet.until(lambda: _lines(output) > 0, _PROBE_S, "the agent predicts again")
    taken = time.perf_counter() - began
    fleet.stop(_WATCHER)
    return taken


def _settle(fleet: ProcessFleet, pid: int, isolation: str) -> None:
    """Wait until the process that tested inference has ended."""
    if isolation == "none":
        fleet.until(lambda: not psutil.Process(pid).children(), _PROBE_S, "the agent is by itself")


def measure(place: Environment, isolation: str, say: Say) -> dict[str, list[float]]:
    """Run an observer until it predicts: memory before and with a model; then restart times."""
    task = demo_task().model_copy(
        update={
            "rounds": Rounds(count=1, min_devices=1, min_windows=_WINDOWS // 2, deadline_s=120.0),
            "config": {"epochs": 1},
        }
    )
    with ProcessFleet(task) as fleet:
        fleet.broker()
        file = noise_recording(fleet.root / "stream.npz", task, _WINDOWS)
        output = fleet.root / "predictions.jsonl"
        watcher = _observer(fleet, place, isolation, file, 20.0)
        fleet.until(
            lambda: "collecting" in fleet.said(_WATCHER) or "connected" in fleet.said(_WATCHER),
            60,
            "it runs",
        )
        time.sleep(2.0)
        _settle(fleet, watcher, isolation)
        bare_pss, _ = memory_mb(watcher)
        say(f"observing without a model: {bare_pss:.1f} MB; training one for it")
        fleet.coordinator(spread_s=0.5)
        fleet.agent("trainer", file, speed=100.0, infer={"enabled": False}, state_every_s=1.0)
        fleet.until(lambda: _lines(output) >= _PREDICTIONS, _LOADED_S, "the observer predicts")
        _settle(fleet, watcher, isolation)
        pss, rss = memory_mb(watcher)
        by_name = _by_process(watcher)
        say(f"predicting: {pss:.1f} MB; {_listed(by_name)}")
        fleet.stop(_WATCHER)
        starts = [_start_s(fleet, place, isolation, file) for _ in range(_STARTS)]
        say(f"from exec to a prediction: {', '.join(f'{taken:.2f}' for taken in starts)} s")
        found = {_MEMORY: pss, "RSS, predicting, MB": rss, "PSS without a model, MB": bare_pss}
        found |= {f"of it {name}, MB": size for name, size in by_name.items()}
        return {name: [value] for name, value in found.items()} | {_START: starts}


def _listed(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {size:.1f}" for name, size in sorted(sizes.items(), key=lambda item: -item[1]))


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """One run (three without ``--quick``)."""
    place = environment(None)
    say(f"observing in {place.how}")
    if not place.torch_free():
        raise Transient(f"{place.python} can import torch: it is no observing environment")
    started = time.perf_counter()
    setting = "environment with lichen[infer] alone" if place.own else "this environment, torch blocked"
    by_setting: dict[str, dict[str, list[float]]] = {}
    for isolation, where in WHERE.items():
        found = by_setting.setdefault(f"{setting}, {where}", {})
        say(where)
        for _ in range(1 if quick else 3):
            for name, values in measure(place, isolation, say).items():
                found.setdefault(name, []).extend(values)
    if place.own:
        packages, size = _contents(place)
        say(f"its {len(packages)} packages, MB: {_listed(packages)}")
        by_setting[setting] = {"packages installed": [float(len(packages))], "site-packages, MB": [size]}
    taken = time.perf_counter() - started
    return [
        one
        for setting, found in by_setting.items()
        for one in figure_rows("noise at 50 Hz", "observing agent", setting, found, seconds=taken)
    ]


BENCH: Final = Bench(
    name="observer",
    run=run,
    goals=(Goal(_MEMORY, 90),),
)
