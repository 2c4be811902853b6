"""Simulated client-rounds a CPU second, beside Flower's own simulation and beside a plain torch loop.

All processes of a side count, by their CPU time between the end of the first round and the end of the last:
the start (imports, processes, Ray) is not in it. Repetitions alternate between the sides.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.benchmarks.suite.peers.flower_fleet import require_flower
from lichen_lab.benchmarks.suite.simulation_speed.fleet import REFERENCE, SMALL
from lichen_lab.simulation.processes.process import ONE_THREAD
from protocol.errors import Transient

LICHEN: Final = "lichen"
AT_ONCE: Final = "lichen, 32 devices at once"
FLOWER: Final = "Flower"
PLAIN: Final = "plain torch loop"
PLAIN_REUSE: Final = "plain torch loop that reuses memory as lichen does"
_DEVICES_AT_ONCE: Final = {LICHEN: 1, AT_ONCE: 32}
_PLAINS: Final = (PLAIN, PLAIN_REUSE)
_PACKAGE: Final = "lichen_lab.benchmarks.suite.simulation_speed"
_ROOT: Final = Path(__file__).resolve().parents[4]
_RATE: Final = "client-rounds a CPU second"
_MEMORY: Final = "memory of all processes, MB"
_TIMES: Final = "times Flower's client-rounds a CPU second"
_OVER: Final = "CPU of a client-round over a plain torch loop's"
_LOOK_S: Final = 0.2
_LIMIT_S: Final = 3600.0
_MB: Final = 1e6


@dataclass(frozen=True)
class SimulationLoad:
    """A simulation."""

    network: str
    devices: int
    per_round: int
    rounds: int

    def words(self) -> str:
        """For the rows."""
        return f"{self.devices:,} clients, {self.per_round} a round, {self.rounds} rounds"


@dataclass
class _Tree:
    """CPU seconds and memory of a process and all below it; what ended counts as it was last seen."""

    root: psutil.Process
    cpu_s: dict[tuple[int, float], float] = field(default_factory=dict)
    most: int = 0

    def look(self) -> float:
        """CPU seconds until now."""
        memory = 0
        for one in [self.root, *self.root.children(recursive=True)]:
            try:
                times, full = one.cpu_times(), one.memory_full_info()
            except psutil.Error:
                continue
            self.cpu_s[one.pid, one.create_time()] = times.user + times.system
            memory += full.pss
        self.most = max(self.most, memory)
        return sum(self.cpu_s.values())

    def end(self) -> None:
        """Kill all of them."""
        for one in [*self.root.children(recursive=True), self.root]:
            with contextlib.suppress(psutil.Error):
                one.kill()


def commands(work: SimulationLoad, side: str, workers: int) -> list[str]:
    """The command line of a side."""
    numbers = [str(work.devices), str(work.per_round), str(work.rounds)]
    if side in _DEVICES_AT_ONCE:
        numbers += [str(workers), str(_DEVICES_AT_ONCE[side])]
        words = [sys.executable, "-P", "-m", f"{_PACKAGE}.lichen_side", work.network, *numbers]
    elif side in _PLAINS:
        reuse = ["reuse"] if side == PLAIN_REUSE else []
        words = [sys.executable, "-P", "-m", f"{_PACKAGE}.plain_loop", work.network, numbers[-1], *reuse]
    else:
        call = f"from {_PACKAGE}.flower_side import main; main({work.network!r}, {', '.join(numbers)})"
        words = [str(require_flower() / "python"), "-c", call]
    return words


def measure(work: SimulationLoad, side: str, workers: int = 2) -> dict[str, float]:
    """Run one side; its figures.

    Raises:
        Transient: it failed; the message has the end of its output.
    """
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(_ROOT)}
    child = subprocess.Popen(
        commands(work, side, workers),
        env=os.environ | ONE_THREAD | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    tree, marks, said = _Tree(psutil.Process(child.pid)), list[tuple[float, float]](), list[str]()
    began = looked = time.monotonic()
    assert child.stdout is not None  # noqa: S101 - a pipe was asked for
    with child:
        for line in child.stdout:
            said.append(line)
            now = time.monotonic()
            if line.startswith("round ") or now - looked > _LOOK_S:
                spent, looked = tree.look(), now
                if line.startswith("round "):
                    marks.append((spent, now))
            if len(marks) == work.rounds or now - began > _LIMIT_S:
                break
        tree.end()
    if len(marks) != work.rounds:
        raise Transient(f"{side}: {len(marks)} of {work.rounds} rounds: {''.join(said[-12:])[-800:]}")
    done = (work.rounds - 1) * (1 if side in _PLAINS else work.per_round)
    cpu_s = marks[-1][0] - marks[0][0]
    return {
        _RATE: done / cpu_s,
        "CPU ms a client-round": 1e3 * cpu_s / done,
        "wall s a round": (marks[-1][1] - marks[0][1]) / (work.rounds - 1),
        _MEMORY: tree.most / _MB,
    }


def compared(
    work: SimulationLoad, sides: Sequence[str], repeats: int, say: Say, workers: int = 2
) -> dict[str, list[dict[str, float]]]:
    """Figures by side, one a repetition."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for repeat in range(repeats):
        for side in sides:
            say(f"{work.network}: {side}, repetition {repeat + 1} of {repeats}")
            found[side].append(measure(work, side, workers))
    return found


def _rows(work: SimulationLoad, found: dict[str, list[dict[str, float]]], seconds: float) -> list[ResultRow]:
    return [
        row(
            f"noise, {work.network} network",
            side,
            work.words(),
            metric,
            [one[metric] for one in runs],
            seconds=seconds,
        )
        for side, runs in found.items()
        for metric in runs[0]
    ]


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """A thousand clients beside Flower, the reference network beside plain torch, ten thousand clients."""
    started = time.perf_counter()
    require_flower()
    small = SimulationLoad(SMALL, 100, 20, 4) if quick else SimulationLoad(SMALL, 1000, 100, 20)
    pairs = compared(small, (LICHEN, AT_ONCE, FLOWER), 1 if quick else 2, say)
    large = SimulationLoad(REFERENCE, 4, 4, 3) if quick else SimulationLoad(REFERENCE, 10, 10, 4)
    loops = compared(large, (LICHEN, *_PLAINS), 1 if quick else 3, say, workers=1)
    rows = [
        *_rows(small, pairs, time.perf_counter() - started),
        *_rows(large, loops, time.perf_counter() - started),
    ]
    for side in _DEVICES_AT_ONCE:
        times = [ours[_RATE] / theirs[_RATE] for ours, theirs in zip(pairs[side], pairs[FLOWER], strict=True)]
        rows.append(row("noise, small network", side, small.words(), _TIMES, times))
    over = [theirs[_RATE] / ours[_RATE] for ours, theirs in zip(loops[LICHEN], loops[PLAIN], strict=True)]
    rows.append(row("noise, reference network", LICHEN, large.words(), _OVER, over))
    if not quick:
        many = SimulationLoad(SMALL, 10_000, 100, 20)
        rows += _rows(many, compared(many, (LICHEN, AT_ONCE), 1, say), time.perf_counter() - started)
    return rows


BENCH: Final = Bench(
    name="simulation",
    run=run,
    goals=(Goal(_TIMES, 3.0, above=True, method=AT_ONCE), Goal(_OVER, 1.15)),
)
