"""Memory of the coordinator while it folds 20 and 200 updates of a million parameters from disk."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.storage.database import Database
from coordinator.storage.update_journal import Journal
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.benchmarks.support import fold_child as child
from lichen_lab.benchmarks.support.tasks import noise_windows
from lichen_lab.simulation.data.streams import Fixed, rng_of
from lichen_lab.simulation.training.runner import VirtualDevice
from models import registry
from models.contract import Blobs, ClientContext, LocalResult
from models.multimodal.network import two_branch_task
from models.tensors import flatten
from models.worker.job_folder import write_state
from protocol.errors import Transient
from protocol.frames.frame import digest, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.tasks.task import Task

_FEW: Final = 20
_MANY: Final = 200
_HIDDEN: Final = 3230  # with it the two-branch network has 999,998 parameters
_GROWTH: Final = "peak memory, 200 updates over 20, %"
_MB: Final = 1e6
_TIMEOUT_S: Final = 300


def million_task() -> Task:
    """The two-branch network with a head wide enough for a million parameters."""
    task = two_branch_task("million")
    return task.model_copy(
        update={"network": task.network.model_copy(update={"hidden_dim": _HIDDEN}), "config": {"epochs": 1}}
    )


def fill_journal(root: Path, task: Task, count: int) -> Blobs:
    """Write a global state and ``count`` different accepted updates of round 1 to disk."""
    client = registry.method(task.method).client()
    state = client.initial(task, 0)
    windows = noise_windows(task, 64)
    (root / child.TASK_FILE).write_text(task.model_dump_json())
    write_state(root / child.STATE_FILE, state)
    trained = client.train(ClientContext(task, child.device_name(0), 1, 0), windows, state, {})
    with Database(root / child.DATABASE) as store:
        journal = Journal(store, root / child.UPDATES)
        for number in range(count):
            context = ClientContext(task, child.device_name(number), 1, number)
            device = VirtualDevice(context.device, Fixed(windows))
            result = _varied(trained, number)
            frame = device.pack(context, windows, result, digest(b"base"))
            header, _ = open_frame(frame, UpdateHeader)
            journal.write(1, digest(frame), frame)
            journal.record(ReceivedUpdate(header, digest(frame), len(frame)), 0.0)
    return state


def _varied(result: LocalResult, number: int) -> LocalResult:
    """The update with other values of the same size."""
    rng = rng_of(number)
    tensors = {
        name: values
        if name in result.codecs
        else values * rng.uniform(0.5, 1.5, values.shape).astype(np.float32)
        for name, values in result.tensors.items()
    }
    return LocalResult(tensors, result.codecs, metrics=result.metrics, extra=result.extra)


def _folded(root: Path, count: int) -> dict[str, float]:
    """A fresh process folds so many.

    Raises:
        Transient: it failed; the message ends with what it said.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", child.__name__, str(root), str(count)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise Transient(f"the folding process ended with status {done.returncode}: {done.stderr[-500:]}")
    report: dict[str, float] = json.loads(done.stdout)
    return report


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Peak memory, and seconds per update."""
    repeats = 1 if quick else 3
    task = million_task()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lichen-fold-") as folder:
        root = Path(folder)
        say(f"writing {_MANY} updates to disk")
        state = fill_journal(root, task, _MANY)
        parameters = sum(x.size for name, x in flatten(state).items() if "running_" not in name)
        beside = ("prototypes/", "classes/")
        parameters -= sum(x.size for name, x in flatten(state).items() if name.startswith(beside))
        found: dict[int, list[dict[str, float]]] = {_FEW: [], _MANY: []}
        for _ in range(repeats):
            for count, reports in found.items():
                say(f"folding {count} in a fresh process")
                reports.append(_folded(root, count))
    seconds = time.perf_counter() - started
    dataset = f"noise, {parameters:,} parameters"
    rows = []
    for count, reports in found.items():
        figures = {
            "peak memory, MB": [r["peak"] / _MB for r in reports],
            "peak above start, MB": [(r["peak"] - r["before"]) / _MB for r in reports],
            "ms an update": [1e3 * r["seconds"] / r["updates"] for r in reports],
            "CPU ms an update": [1e3 * r["cpu_s"] / r["updates"] for r in reports],
        }
        rows += [
            row(dataset, task.method, f"{count} updates, int8, from disk", metric, values, seconds=seconds)
            for metric, values in figures.items()
        ]
    growth = [
        100 * (many["peak"] / few["peak"] - 1) for few, many in zip(found[_FEW], found[_MANY], strict=True)
    ]
    rows.append(row(dataset, task.method, "whole process", _GROWTH, growth, seconds=seconds))
    return rows


BENCH: Final = Bench(
    name="fold",
    run=run,
    goals=(Goal(_GROWTH, 10),),
)
