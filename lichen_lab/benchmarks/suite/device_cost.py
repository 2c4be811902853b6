"""What federation costs a device beyond training: real agents, a real broker, the 223,622-parameter network.

CPU seconds of the agent process and its worker, all rounds but the first, minus those spent inside the
method's training call. The first round, in which the worker starts and imports torch, is shown on its own.
"""

import json
import time
from pathlib import Path
from typing import Any, Final

import psutil

from coordinator.status.history import read
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.support import timed_worker
from lichen_lab.benchmarks.support.fleet import ProcessFleet, cpu_seconds, noise_recording
from models.multimodal.network import two_branch_task
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task

_WINDOWS: Final = 500
_AGENTS: Final = 3
_BEYOND: Final = "CPU s a round beyond training"
_FILL_S: Final = 120.0
_ROUND_S: Final = 60.0


def _task(rounds: int, agents: int) -> Task:
    """The task; rounds open when all agents have their windows."""
    return two_branch_task().model_copy(
        update={
            "rounds": Rounds(count=rounds, deadline_s=300.0, min_devices=agents, min_windows=_WINDOWS),
            "config": {"epochs": 1},
        }
    )


def _train_log(file: Path) -> list[dict[str, Any]]:
    """Lines of the worker: round, CPU seconds of training, CPU seconds of the worker so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _closed(state: Path) -> int:
    """The coordinator's newest version."""
    return max((int(version["version"]) for version in read(state)["versions"]), default=0)


def measure(rounds: int, agents: int, say: Say) -> dict[str, list[float]]:
    """Run the fleet; figures by name, one value an agent."""
    task = _task(rounds, agents)
    names = [f"device-{number}" for number in range(agents)]
    with ProcessFleet(task) as fleet:
        fleet.broker()
        state = fleet.coordinator(export={"enabled": False}, spread_s=1.0)
        pids = {}
        for number, name in enumerate(names):
            file = noise_recording(fleet.root / f"{name}.npz", task, round(1.2 * _WINDOWS), seed=number)
            fleet.agent(
                name,
                file,
                speed=200.0,
                env={timed_worker.VARIABLE: str(fleet.root / f"{name}.train")},
                learn={"module": timed_worker.__name__, "max_windows": _WINDOWS},
                infer={"enabled": False},
                state_every_s=1.0,
            )
            pids[name] = fleet.pid(name)
        logs = {name: fleet.root / f"{name}.train" for name in names}
        say(f"{agents} agents collect {_WINDOWS} windows each")
        fleet.until(lambda: all(file.is_file() for file in logs.values()), _FILL_S, "all have trained")
        fleet.until(lambda: _closed(state) >= 1, _ROUND_S, "round 1 is closed")
        first = {name: (cpu_seconds(pid), _train_log(logs[name])) for name, pid in pids.items()}
        say("round 1 is closed")
        begun = time.monotonic()
        fleet.until(lambda: _closed(state) >= rounds, rounds * _ROUND_S, f"round {rounds} is closed")
        elapsed = time.monotonic() - begun
        say(f"round {rounds} is closed")
        found: dict[str, list[float]] = {}
        for name, pid in pids.items():
            log = _train_log(logs[name])
            for key, value in _figures(cpu_seconds(pid), log, *first[name]).items():
                found.setdefault(key, []).append(value)
            found.setdefault("agent memory, RSS MB", []).append(psutil.Process(pid).memory_info().rss / 1e6)
        found["wall s a round, all agents on this machine"] = [elapsed / (rounds - 1)]
    return found


def _figures(
    cpu_s: float, log: list[dict[str, Any]], cpu_then_s: float, log_then: list[dict[str, Any]]
) -> dict[str, float]:
    """One agent's figures, from its CPU seconds and worker log after round 1 and after the last."""
    later = log[len(log_then) :]
    training = sum(line["train_cpu_s"] for line in later)
    return {
        _BEYOND: (cpu_s - cpu_then_s - training) / len(later),
        "CPU s a round in training": training / len(later),
        "CPU s of the worker's start (once)": log[0]["process_cpu_s"] - log[0]["train_cpu_s"],
    }


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three agents and five rounds; quick: one agent and three."""
    started = time.perf_counter()
    agents, rounds = (1, 3) if quick else (_AGENTS, 6)
    found = measure(rounds, agents, say)
    seconds = time.perf_counter() - started
    setting = f"{agents} agents, {rounds - 1} rounds, {_WINDOWS} windows, 1 epoch, int8"
    return figure_rows("noise, 223,622 parameters", "qqr", setting, found, seconds=seconds)


BENCH: Final = Bench(
    name="device",
    run=run,
    goals=(Goal(_BEYOND, 0.3),),
)
