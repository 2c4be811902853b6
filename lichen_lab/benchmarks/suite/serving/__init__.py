"""What the agent adds to ONNX Runtime: time around a prediction, and memory over thousands of swaps.

Windows of noise, 128 samples of 6 channels, one at a time, in blocks: ``session.run`` alone, and the agent's
way with the same windows, to the answer and to its line in the output file; with a process for the model, and
with the model in the agent. A swap loads a model, tries it, installs it and ends the one before.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.support.tasks import demo_task
from lichen_lab.simulation.processes.environment import environment
from protocol.bundle import unpack
from protocol.errors import Transient
from protocol.frames.frame import digest
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Task

_ADDED: Final = "added to session.run, %"
_GROWTH: Final = "growth of PSS over the swaps, %"
_WINDOWS: Final = 2000
_SWAPS: Final = 10_000
_TIMEOUT_S: Final = 3600.0
_EDGE: Final = 5
"""Measurements at either end; growth is the difference of their medians."""
_MS: Final = 1000.0
WHERE: Final = {"process": "a process for the model", "none": "in the agent"}
"""By ``infer.isolation``."""


def networks() -> dict[str, Network]:
    """Models by words: one at almost no cost, and one that a small device can just afford."""
    lstm = Encoder(kind="lstm", width=128, depth=2)
    return {
        "default network (CNN)": Network(),
        "LSTM, 2 layers of 128": Network(encoders={"accelerometer": lstm, "gyroscope": lstm}),
    }


def bundle(task: Task, folder: Path, seed: int) -> Path:
    """Unpack a bundle of the task's initial model into a folder named by its digest."""
    from export.bundle_builder import Lineage, make_bundle  # noqa: PLC0415 - imports torch
    from models.registry import method  # noqa: PLC0415

    state = method(task.method).client().initial(task, seed=seed)
    data, _ = make_bundle(task, state, Lineage(1, 1, "1" * 64, None, {}))
    place = folder / digest(data)
    place.mkdir(parents=True)
    manifest, files = unpack(data)
    (place / "manifest.json").write_text(manifest.model_dump_json(exclude_none=True))
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place


def _child(what: str, task: Path, count: int, isolation: str, folders: Sequence[Path]) -> dict[str, Any]:
    """Measure in a fresh process. Raises Transient."""
    python, out = environment(None).python, task.with_name("measured.json")
    done = subprocess.run(
        [
            python,
            "-P",
            "-m",
            "lichen_lab.benchmarks.suite.serving.child",
            what,
            task,
            str(count),
            out,
            isolation,
            *folders,
        ],
        # Before anything is imported, as in an agent: a process with threads cannot be forked.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise Transient(f"the measuring process ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _latencies(found: Mapping[str, list[float]]) -> dict[str, float]:
    """Medians, and the overhead of the agent in %."""
    middle = {name: statistics.median(values) for name, values in found.items()}
    return {
        "session.run, ms": _MS * middle["run"],
        "the same with inputs checked and made, ms": _MS * middle["predict"],
        "of the agent's way, the model, ms": _MS * middle["ran"],
        "to the answer, ms": _MS * middle["asked"],
        "to the line in the file, ms": _MS * middle["whole"],
        "to the answer, 95th percentile, ms": _MS * statistics.quantiles(found["asked"], n=20)[-1],
        _ADDED: 100 * (middle["asked"] / middle["run"] - 1),
        "added to the model's part of the agent's way, %": 100 * (middle["asked"] / middle["ran"] - 1),
    }


def _growth(found: Mapping[str, Any]) -> dict[str, float]:
    looks = found["looks"]

    def ends(name: str) -> tuple[float, float]:
        values = [look[name] for look in looks]
        return statistics.median(values[:_EDGE]), statistics.median(values[-_EDGE:])

    (first, last), (agent_first, agent_last) = ends("all"), ends("agent")
    return {
        _GROWTH: 100 * (last / first - 1),
        "PSS of all processes at first, MB": first,
        "PSS of all processes at last, MB": last,
        "growth of the agent's own process, %": 100 * (agent_last / agent_first - 1),
        "processes at last": looks[-1]["processes"],
        "open files more than at first": looks[-1]["files"] - looks[0]["files"],
        "a swap, median, ms": _MS * statistics.median(found["swap"]),
        "a swap, 99th percentile, ms": _MS * statistics.quantiles(found["swap"], n=100)[-1],
    }


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """2000 windows and 10,000 swaps; quick: a tenth, and 200 swaps."""
    windows, count = (_WINDOWS // 10, _SWAPS // 50) if quick else (_WINDOWS, _SWAPS)
    rows: list[ResultRow] = []
    with tempfile.TemporaryDirectory(prefix="lichen-bench-") as made:
        root = Path(made)
        for words, network in networks().items():
            task = demo_task().model_copy(update={"network": network})
            file = root / "task.json"
            file.write_text(task.model_dump_json())
            folders = [bundle(task, root / str(len(rows)), seed) for seed in (1, 2)]
            started = time.perf_counter()
            say(f"{words}: {windows} windows")
            figures: dict[str, dict[str, float]] = {}
            for isolation, where in WHERE.items():
                found = _child("latency", file, windows, isolation, folders[:1])
                figures[f"{windows} windows, {where}"] = _latencies(found)
                if not rows:
                    say(f"{words}: {count} swaps, {where}")
                    found = _child("swaps", file, count, isolation, folders)
                    figures[f"{count} swaps, {where}"] = _growth(found)
            taken = time.perf_counter() - started
            for setting, values in figures.items():
                rows += figure_rows("noise, 128 x 6", words, setting, values, seconds=taken)
    return rows


BENCH: Final = Bench(
    name="serving",
    run=run,
    goals=(Goal(_ADDED, 5), Goal(_GROWTH, 10)),
)
