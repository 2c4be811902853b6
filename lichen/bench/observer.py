"""Memory of an observing agent that infers, and what its environment without torch weighs.

The whole loop runs first: one agent trains one round, the coordinator exports, and the observing agent pulls
the bundle over MQTT and predicts on a replayed stream.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import psutil

from lichen.bench._fleet import Fleet, noise_recording
from lichen.bench._tasks import demo_task
from lichen.bench.result import Bench, Goal, Row, Say, row
from lichen.demo.observer import Environment, environment
from protocol.errors import Transient
from protocol.task import Rounds

_MB: Final = 1e6
_MEMORY: Final = "RSS, predicting, MB"
_LOADED_S: Final = 180.0
_PROBE_S: Final = 60.0
_PREDICTIONS: Final = 30
_WINDOWS: Final = 200
_INSIDE: Final = """
import importlib.metadata, json, pathlib, sysconfig
found = sorted({d.name for d in importlib.metadata.distributions()})
files = (f for f in pathlib.Path(sysconfig.get_path("purelib")).rglob("*") if f.is_file())
print(json.dumps({"packages": found, "bytes": sum(f.stat().st_size for f in files)}))
"""


def _memory(pid: int) -> tuple[float, float]:
    """RSS and PSS of the one process, in MB."""
    full = psutil.Process(pid).memory_full_info()
    return full.rss / _MB, getattr(full, "pss", full.rss) / _MB


def _contents(place: Environment) -> tuple[list[str], float]:
    """The distributions installed there, and megabytes of its site-packages.

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
    return found["packages"], found["bytes"] / _MB


def _lines(file: Path) -> int:
    return file.read_text().count("\n") if file.is_file() else 0


def measure(place: Environment, say: Say) -> dict[str, float]:
    """Run the loop to a predicting observer; its memory before it has a model, and with one."""
    task = demo_task().model_copy(
        update={
            "rounds": Rounds(count=1, min_devices=1, min_windows=_WINDOWS // 2, deadline_s=120.0),
            "config": {"epochs": 1},
        }
    )
    with Fleet(task) as fleet:
        fleet.broker()
        file = noise_recording(fleet.root / "stream.npz", task, _WINDOWS)
        output = fleet.root / "predictions.jsonl"
        watcher = fleet.agent(
            "watcher",
            file,
            speed=20.0,
            command=place.command,
            roles=["observe"],
            infer={"output": str(output)},
            source=[{"kind": "replay", "file": str(file), "speed": 20.0, "loop": True}],
        )
        fleet.until(
            lambda: "collecting" in fleet.said("watcher") or "connected" in fleet.said("watcher"),
            60,
            "it runs",
        )
        time.sleep(2.0)
        bare_rss, bare_pss = _memory(watcher.pid)
        say(f"observing without a model: {bare_rss:.1f} MB; training one for it")
        fleet.coordinator(spread_s=0.5)
        trainer = fleet.agent("trainer", file, speed=100.0, infer={"enabled": False}, state_every_s=1.0)
        fleet.until(lambda: _lines(output) >= _PREDICTIONS, _LOADED_S, "the observer predicts")
        rss, pss = _memory(watcher.pid)
        children = len(psutil.Process(watcher.pid).children(recursive=True))
        say(f"predicting: {rss:.1f} MB, {children} child processes")
        del trainer
        return {
            _MEMORY: rss,
            "PSS, predicting, MB": pss,
            "RSS without a model, MB": bare_rss,
            "PSS without a model, MB": bare_pss,
            "child processes": float(children),
        }


def run(quick: bool, say: Say) -> list[Row]:  # noqa: FBT001 - every benchmark's signature
    """One run (three without ``--quick``)."""
    place = environment(None)
    say(f"observing in {place.how}")
    if not place.torch_free():
        raise Transient(f"{place.python} can import torch: it is no observing environment")
    started = time.perf_counter()
    found: dict[str, list[float]] = {}
    for _ in range(1 if quick else 3):
        for name, value in measure(place, say).items():
            found.setdefault(name, []).append(value)
    if place.own:
        packages, size = _contents(place)
        say(f"its packages: {', '.join(packages)}")
        found |= {"packages installed": [float(len(packages))], "site-packages, MB": [size]}
    taken = time.perf_counter() - started
    setting = "environment with lichen[infer] alone" if place.own else "this environment, torch blocked"
    return [
        row("noise at 50 Hz", "observing agent", setting, n, values, seconds=taken)
        for n, values in found.items()
    ]


BENCH: Final = Bench(
    name="observer",
    title="memory of an agent that only observes and infers",
    run=run,
    goals=(Goal(_MEMORY, 90),),
)
