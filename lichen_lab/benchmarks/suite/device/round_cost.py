"""A fleet of real agents for one task: CPU, memory and bytes of a device's round.

CPU seconds of the agent process and its worker, all rounds but the first, minus those spent inside the
method's training call. The first round, in which the worker starts and imports torch, is shown on its own.
"""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from coordinator.status.history import read
from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.suite.device.method_cases import DeviceCase
from lichen_lab.benchmarks.support import timed_worker
from lichen_lab.benchmarks.support.fleet import ProcessFleet, cpu_seconds
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from protocol.errors import Misconfigured
from protocol.tasks.rounds import Rounds

BEYOND: Final = "CPU s a round beyond training"
TRAINING: Final = "CPU s a round in training"
WORKER_PEAK: Final = "highest memory of the worker, RSS MB"
NUMBERS: Final = "numbers that a device holds of a version"
SENT: Final = "bytes up a round"
RECEIVED: Final = "bytes down a round"
_FILL_S: Final = 180.0
_ROUND_S: Final = 120.0
_MB: Final = 1e6


def _train_log(file: Path) -> list[dict[str, Any]]:
    """Lines of the worker, one a round; see :mod:`lichen_lab.benchmarks.support.timed_worker`."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def _closed(state: Path) -> int:
    """The coordinator's newest version; 0 before its database is made."""
    with contextlib.suppress(Misconfigured):
        return max((int(version["version"]) for version in read(state)["versions"]), default=0)
    return 0


def measure(case: DeviceCase, rounds: int, agents: int, say: Say) -> dict[str, list[float]]:
    """Run the fleet; figures by name, one value an agent.

    Args:
        case: the task, and what its devices learn from.
        rounds: with the first, which no figure of a round contains.
        agents: each waits for its material; a round opens with all of them.
        say: takes the progress.
    """
    task = case.task.model_copy(
        update={
            "rounds": Rounds(
                count=rounds, deadline_s=300.0, min_devices=agents, min_windows=case.task.rounds.min_windows
            )
        }
    )
    names = [f"device-{number}" for number in range(agents)]
    with ProcessFleet(task) as fleet, ExitStack() as meters:
        case.prepare(fleet.root)
        fleet.broker()
        state = fleet.coordinator(export={"enabled": False}, spread_s=1.0)
        logs = {name: fleet.root / f"{name}.train" for name in names}
        taken = {name: meters.enter_context(Proxy(fleet.port)) for name in names}
        for number, name in enumerate(names):
            case.start(
                fleet,
                name,
                number,
                port=taken[name].port,
                env={timed_worker.VARIABLE: str(logs[name])},
                learn={"module": timed_worker.__name__, "max_windows": case.windows},
                infer={"enabled": False},
                state_every_s=1.0,
            )
        pids = {name: fleet.pid(name) for name in names}
        say(f"{case.method}, {case.size}: {agents} agents collect {case.material} each")
        moved = _Moved(taken, logs)
        fleet.until(partial(moved.all_began, 1), _FILL_S, "all train")
        fleet.until(lambda: _closed(state) >= 1, _ROUND_S, "round 1 is closed")
        first = {name: (cpu_seconds(pid), _train_log(logs[name])) for name, pid in pids.items()}
        begun = time.monotonic()
        fleet.until(partial(moved.all_began, rounds), rounds * _ROUND_S, f"all train in round {rounds}")
        fleet.until(lambda: _closed(state) >= rounds, rounds * _ROUND_S, f"round {rounds} is closed")
        elapsed = time.monotonic() - begun
        say(f"round {rounds} is closed")
        found: dict[str, list[float]] = {}
        for name, pid in pids.items():
            up, down = moved.a_round(name, rounds)
            of_one = {
                **figures(cpu_seconds(pid), _train_log(logs[name]), *first[name]),
                "agent memory, RSS MB": psutil.Process(pid).memory_info().rss / _MB,
                SENT: up,
                RECEIVED: down,
            }
            for key, value in of_one.items():
                found.setdefault(key, []).append(value)
        found["wall s a round, all agents on this machine"] = [elapsed / (rounds - 1)]
    return found


class _Moved:
    """Bytes of TCP payload that each device has sent and received when it begins to train in a round.

    By then it has the version that the round trains, and none of the round's update has left.
    """

    def __init__(self, meters: Mapping[str, Proxy], logs: Mapping[str, Path]) -> None:
        self._meters = meters
        self._begun = {name: file.with_name(file.name + timed_worker.BEGUN) for name, file in logs.items()}
        self._at: dict[tuple[str, int], tuple[int, int]] = {}

    def all_began(self, round_: int) -> bool:
        """Whether all have begun to train in that round; notes the bytes of those that have."""
        for name, meter in self._meters.items():
            if (name, round_) not in self._at and round_ in self._rounds(name):
                self._at[name, round_] = meter.bytes_taken("up"), meter.bytes_taken("down")
        return all((name, round_) in self._at for name in self._meters)

    def _rounds(self, name: str) -> set[int]:
        file = self._begun[name]
        return {int(line) for line in file.read_text().split()} if file.is_file() else set()

    def a_round(self, name: str, rounds: int) -> tuple[float, float]:
        """Bytes up and down of a device in a round, the mean over the rounds but the last."""
        pairs = zip(self._at[name, rounds], self._at[name, 1], strict=True)
        up, down = (now - then for now, then in pairs)
        return up / (rounds - 1), down / (rounds - 1)


def figures(
    cpu_s: float, log: Sequence[Mapping[str, Any]], cpu_then_s: float, log_then: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """One agent's figures, from its CPU seconds and worker log after round 1 and after the last."""
    later = log[len(log_then) :]
    training = sum(line["train_cpu_s"] for line in later)
    return {
        BEYOND: (cpu_s - cpu_then_s - training) / len(later),
        TRAINING: training / len(later),
        "CPU s of the worker's start (once)": log[0]["process_cpu_s"] - log[0]["train_cpu_s"],
        WORKER_PEAK: max(line["peak_bytes"] for line in log) / _MB,
        NUMBERS: log[-1]["numbers"],
    }
