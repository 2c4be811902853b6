"""``lichen task try``: a task in the processes of a fleet, once, on made-up windows."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from coordinator.config.versions import WorkerSettings
from coordinator.workers import backbones
from coordinator.workers.jobs import ExportLineage, WorkerJobs
from models import packages
from models.backbones.views import sensed
from models.backbones.windows import learned
from models.contract import Blobs, LocalResult, Tensors, WindowSet
from models.data import window_set
from models.registry import admit, method
from models.tensors import flatten
from models.worker import job_folder
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.process.worker import Worker

_WINDOWS = 48
_SEED = 7


async def tried(
    task: Task, allow: tuple[str, ...], folder: Path, source: Path
) -> AsyncIterator[tuple[str, str]]:
    """What was tried, and the result, as each step is done.

    Args:
        task: on windows.
        allow: packages that it may use.
        folder: empty; for the jobs.
        source: of the task file and its backbones.

    Raises:
        Misconfigured: a step cannot be done, or twice the same step gave other values.
        Refused: the ONNX model differs from torch.
        Transient: there is nothing to learn in such windows, or a process ended.
    """
    packages.require(task, allow)
    admit(task, allow)
    spec = method(task.method)
    spec.configure(task)
    file = folder / job_folder.WINDOWS
    made = made_windows(sensed(task))
    await asyncio.to_thread(window_set.save, file, made)
    await asyncio.to_thread(backbones.keep, task, source, folder)
    windows = await asyncio.to_thread(learned, task, made, source)
    jobs = WorkerJobs(task, folder / "jobs", file, WorkerSettings(), int8=False, packages=allow)
    worker, train = Worker("models.worker"), folder / "train"
    await asyncio.to_thread(train.mkdir)
    try:
        state = await jobs.initial()
        _require_same(flatten(state), flatten(await jobs.initial()), "version 0 of one seed")
        yield "version 0", f"{sum(x.size for x in flatten(state).values()):,} values, the same twice"
        job = job_folder.TrainJob(task, "try", 1, _SEED, packages=allow)
        result = await _trained(worker, train, job, windows, state)
        began = time.monotonic()  # torch is loaded now
        again = await _trained(worker, train, job, windows, state)
        seconds = time.monotonic() - began
        _require_same(result.tensors, again.tensors, "training on the same windows")
        yield "training", f"{len(windows)} made-up windows in {seconds:.1f} s, the same twice"
        if not spec.routed and not spec.guided:
            metrics = (await jobs.evaluate(state)).metrics
            yield "evaluation", ", ".join(f"{name} {value:.3g}" for name, value in sorted(metrics.items()))
        if not spec.routed:
            bundle = await jobs.export(state, ExportLineage(0, None, "0" * 64, {}))
            yield "bundle", f"{len(bundle.data):,} bytes; the ONNX model and torch agree"
        if spec.prototype_role:
            graphs = await jobs.features()
            yield "prototypes", f"encoder models of {', '.join(graphs)} and torch agree"
    finally:
        await worker.close()
        await jobs.close()


async def _trained(
    worker: Worker, folder: Path, job: job_folder.TrainJob, windows: WindowSet, state: Blobs
) -> LocalResult:
    await asyncio.to_thread(job_folder.write_train, folder, job, windows, state, {})
    await worker.run(folder, WorkerSettings().timeout_s)
    return await asyncio.to_thread(job_folder.read_result, folder)


def _require_same(one: Tensors, other: Tensors, what: str) -> None:
    names = sorted(one.keys() | other.keys())
    for name in names:
        if name not in one or name not in other or one[name].tobytes() != other[name].tobytes():
            raise Misconfigured(
                f"{what} gave other values of {name} the second time: draw only from torch's generator, "
                "which the seed sets, and keep no state between calls"
            )


def made_windows(task: Task) -> WindowSet:
    """Noise in the task's units, every class in turn."""
    if task.graph is not None:
        raise Misconfigured(f"task {task.name!r} is on knowledge graphs; only tasks on windows are tried")
    rng, names = np.random.default_rng(_SEED), task.modality_names
    x = {}
    for one in task.modalities:
        noise_BCT = rng.standard_normal((_WINDOWS, one.channels, task.samples(one.name)))
        x[one.name] = (one.offset + one.scale * noise_BCT).astype(np.float32)
    shape = (_WINDOWS, len(names))
    labels_B = (np.arange(_WINDOWS) % len(task.labels)).astype(np.int64)
    return WindowSet(x, np.ones(shape, np.bool_), np.ones(shape, np.float32), labels_B)
