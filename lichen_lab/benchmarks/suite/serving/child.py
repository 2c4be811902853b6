"""The process that ``lichen bench serving`` measures: what of the agent runs models, without the rest of it.

``python -P -m lichen_lab.benchmarks.suite.serving.child latency|swaps TASK COUNT OUT ISOLATION FOLDER...``
writes one JSON
object to the file OUT. ISOLATION is that of ``[infer]``; the folders are unpacked bundles of the same task.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from edge_agent.config.agent import InferSettings
from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.providers.kinds import CPU
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.zygote_client import IDLE_S, ZygoteClient
from edge_agent.windows.quality.meter import REASONS, Quality, ScoredWindows
from lichen_lab.benchmarks.support.tasks import noise_windows
from lichen_lab.simulation.processes.environment import memory_of_tree
from models.data.streams.windows import Windows
from protocol.tasks.task import Task
from runtime.clock import SystemClock
from runtime.process.daemon import loop_factory

_WARM: Final = 50
"""Windows or swaps before the measurement."""
_BLOCK: Final = 25
"""Consecutive windows on one path, so that another process's cache contents do not decide."""
_EACH: Final = 10
"""Swaps from one prediction to the next."""
_LOOKS: Final = 40
"""Number of memory measurements, spread evenly over the swaps."""


class Stand:
    """The agent's inference, and one window at a time for it.

    Args:
        task: of the bundles.
        zygote: forked.
        settings: of the inference.
    """

    def __init__(self, task: Task, zygote: ZygoteClient, settings: InferSettings) -> None:
        self._clock = SystemClock()
        self._task = task
        self._windows = noise_windows(task, 256)
        self._answered = asyncio.Event()
        self._seen: BatchObservation | None = None
        self._next = 0
        self.inference = Inference(settings, self._clock, zygote=zygote)

    def observe(self, seen: BatchObservation) -> None:
        """Take the answer of a batch; runs on the event loop."""
        self._seen = seen
        self._answered.set()

    def window(self) -> Windows:
        """The next window, as it comes from the stream."""
        some, self._next = slice(self._next, self._next + 1), (self._next + 1) % len(self._windows.y_B)
        x = {name: np.ascontiguousarray(x_BCT[some]) for name, x_BCT in self._windows.x.items()}
        covered = {name: np.ones((1, x_BCT.shape[-1]), np.bool_) for name, x_BCT in x.items()}
        present_BM = np.ones((1, len(x)), np.bool_)
        return Windows(np.zeros(1), x, covered, present_BM, self._windows.y_B[some])

    async def ask(self, windows: Windows) -> BatchObservation:
        """Offer a window and wait until its line is written."""
        self._answered.clear()
        quality = Quality(
            np.ones((1, len(windows.x)), np.float32), np.zeros((1, len(windows.x), len(REASONS)), bool)
        )
        self.inference.enqueue(ScoredWindows(self._task, windows, quality, self._clock.now()))
        await self._answered.wait()
        if self._seen is None or self._seen.error:
            raise RuntimeError(f"no answer: {self._seen}")
        return self._seen


async def latency(stand: Stand, folders: list[Path], count: int) -> dict[str, Any]:
    """Seconds of each window with a bare session and with the agent's code, in alternating blocks."""
    from edge_agent.inference.onnx_models.session import open_session  # noqa: PLC0415 - as above
    from edge_agent.inference.onnx_models.window_model import LoadedModel  # noqa: PLC0415 - not before the zygote was forked

    model = await stand.inference.load(folders[0])
    stand.inference.activate(model)
    loaded = LoadedModel(folders[0], 1)
    bare = open_session(folders[0], loaded.manifest, 1)
    outputs = [one.name for one in bare.get_outputs()]
    taken: dict[str, list[float]] = {"run": [], "predict": [], "ran": [], "asked": [], "whole": []}
    for _ in range(_WARM // _BLOCK + count // _BLOCK):
        block = [stand.window() for _ in range(_BLOCK)]
        for windows in block:
            feeds = windows.x | {"present": windows.present_BM.astype(np.float32)}
            began = time.perf_counter()
            bare.run(outputs, feeds)
            taken["run"].append(time.perf_counter() - began)
        for windows in block:
            began = time.perf_counter()
            loaded.predict(windows.x, windows.present_BM, list(loaded.names))
            taken["predict"].append(time.perf_counter() - began)
        for windows in block:
            began = time.perf_counter()
            seen = await stand.ask(windows)
            taken["whole"].append(time.perf_counter() - began)
            taken["asked"].append(seen.latency_s)
            taken["ran"].append(model.ran_s)
    return {name: values[_WARM:] for name, values in taken.items()}


def _memory() -> dict[str, float]:
    """PSS in MB of this process and its descendants."""
    sizes = [pss for _, pss, _ in memory_of_tree(os.getpid())]
    files = psutil.Process().num_fds()
    return {"agent": sizes[0], "all": sum(sizes), "processes": len(sizes), "files": files}


async def swaps(stand: Stand, folders: list[Path], count: int) -> dict[str, Any]:
    """Swap models; returns memory at even intervals and the seconds of each swap."""
    looks: list[dict[str, float]] = []
    taken: list[float] = []
    for at in range(_WARM + count):
        began = time.perf_counter()
        model = await stand.inference.load(folders[at % len(folders)])
        stand.inference.activate(model)
        taken.append(time.perf_counter() - began)
        if at % _EACH == 0:
            await stand.ask(stand.window())
        if at >= _WARM and (at - _WARM) % max(1, count // _LOOKS) == 0:
            await stand.ask(stand.window())
            looks.append(_memory())
    return {"looks": looks, "swap": taken[_WARM:]}


async def _measured(what: str, stand: Stand, count: int, folders: list[Path]) -> dict[str, Any]:
    running = asyncio.ensure_future(stand.inference.run(observe=stand.observe))
    try:
        measure = {"latency": latency, "swaps": swaps}[what]
        return await measure(stand, folders, count)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def main(what: str, task: str, count: str, out: str, isolation: str, *folders: str) -> None:
    """Fork the zygote first, as the agent does."""
    zygote = ZygoteClient(idle_s=None if isolation == "process" else IDLE_S)
    zygote.fork()
    said = Task.model_validate_json(Path(task).read_text())
    with (
        tempfile.TemporaryDirectory(prefix="lichen-bench-") as made,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        settings = InferSettings.model_validate(
            {
                "output": Path(made) / "predictions.jsonl",  # they go there, as they do in an agent
                "isolation": isolation,
                "variant": "float32",
                "providers": (CPU,),
            }
        )
        stand = Stand(said, zygote, settings)
        found = runner.run(_measured(what, stand, int(count), [Path(one) for one in folders]))
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
