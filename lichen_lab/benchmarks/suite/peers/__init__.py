"""lichen and Flower on the same fleet, model, data and rounds: real processes of both, one after the other.

Both make the same training call (lichen's) on the same windows, with one thread and without TLS. Flower runs
as it ships; lichen with its float32 codec, which sends the same parameters, and with its default codec.
Repetitions alternate.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.benchmarks.result import Bench, ResultRow, Say, row
from lichen_lab.benchmarks.suite.peers.flower_fleet import FlowerFleet, require_flower, version
from lichen_lab.benchmarks.suite.peers.lichen_fleet import LichenFleet
from lichen_lab.benchmarks.suite.peers.measure import Meters, measure
from lichen_lab.benchmarks.support.fleet import noise_recording
from lichen_lab.simulation.processes.embedded_broker import free_port
from models.data import window_set
from models.data.streams.recording import read
from models.multimodal.network import two_branch_task
from protocol.tasks.links import Uplink
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task

_WINDOWS: Final = 500
_DEVICES: Final = 3
_ROUNDS: Final = 4
_REPEATS: Final = 2
_CODECS: Final = {"lichen, float32": "float32", "lichen, int8 (default)": "int8"}


def _task(rounds: int, devices: int, codec: str) -> Task:
    """The reference network; every round needs all devices. One round more than is measured."""
    return two_branch_task("peers").model_copy(
        update={
            "rounds": Rounds(
                count=rounds + 1, deadline_s=300.0, min_devices=devices, min_windows=_WINDOWS, quorum=1.0
            ),
            "uplink": Uplink(codec=codec),
            "config": {"epochs": 1, "quality": "none"},
        }
    )


def _windows(task: Task, recordings: Sequence[Path]) -> list[Path]:
    """The first windows of each recording, as the agents store them."""
    files = []
    for file in recordings:
        windows = windows_of_recording(task, read(file))
        made = file.with_suffix(".windows.npz")
        window_set.save(made, window_set.select(windows, np.arange(len(windows.y_B)) < _WINDOWS))
        files.append(made)
    return files


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three devices, four rounds, two repetitions; quick: two devices, three rounds, once."""
    devices, rounds, repeats = (2, 3, 1) if quick else (_DEVICES, _ROUNDS, _REPEATS)
    flower = f"Flower {version(require_flower())}"
    found: dict[tuple[str, str], list[float]] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="lichen-peers-") as folder:
        task = _task(rounds, devices, "float32")
        recordings = [
            noise_recording(Path(folder) / f"device-{number}.npz", task, round(1.2 * _WINDOWS), seed=number)
            for number in range(devices)
        ]
        windows = _windows(task, recordings)
        for repeat in range(repeats):
            for name in (flower, *_CODECS):
                say(f"{name}, repetition {repeat + 1} of {repeats}")
                began = time.monotonic()
                port = free_port()
                fleet = (
                    FlowerFleet(task, windows, port)
                    if name == flower
                    else LichenFleet(_task(rounds, devices, _CODECS[name]), recordings, _WINDOWS, port)
                )
                with fleet, Meters(port, devices) as meters:
                    figures = measure(fleet.begin(meters), meters, rounds, say)
                for metric, value in figures.items():
                    found.setdefault((name, metric), []).append(value)
                seconds[name] = seconds.get(name, 0.0) + time.monotonic() - began
    setting = f"{devices} devices, {rounds - 1} rounds after the first, {_WINDOWS} windows, 1 epoch"
    return [
        row("noise, 223,622 parameters", name, setting, metric, values, seconds=seconds[name])
        for (name, metric), values in found.items()
    ]


BENCH: Final = Bench(
    name="peers",
    run=run,
)
