"""Backbones of the task: measured at the start, stored as blobs, run on the coordinator's windows.

ONNX Runtime runs in child processes (``models.worker.backbones``).
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.objects.blobs import BlobStorage
from models.backbones import files
from models.backbones.views import Measure, backbones, prepared
from models.worker import backbones as jobs
from protocol.errors import Misconfigured, Refused
from protocol.tasks.kinds import Backbone
from protocol.tasks.task import Modality, Task
from runtime.process.worker import Worker
from runtime.storage.files import write_atomic

FOLDER: Final = "backbones"
"""Below ``state_dir``: their files, by digest."""
_TIMEOUT_S: Final = 300.0


def prepare(task: Task, folder: Path) -> Task:
    """A task from a file in that folder, with its backbones measured.

    Raises:
        Misconfigured: one cannot be used, or the task does not fit it; the message names the modality.
    """
    return prepared(task, _measure_in(folder))


def _measure_in(folder: Path) -> Measure:
    def measure(modality: Modality, samples: int) -> Backbone:
        job = jobs.MeasureBackboneJob(modality=modality, samples=samples, folder=str(folder.resolve()))
        with tempfile.TemporaryDirectory(prefix="lichen-backbone-") as name:
            run(Path(name), job)
            return Backbone.model_validate_json((Path(name) / jobs.RESULT).read_bytes())

    return measure


def run(job_dir: Path, job: jobs.MeasureBackboneJob | jobs.ConvertWindowsJob) -> None:
    """Do a job in a child process, before any event loop runs.

    Raises:
        Misconfigured: it cannot be done; the message says why.
    """
    jobs.write_job(job_dir, job)
    command = [sys.executable, "-P", "-m", jobs.__name__, str(job_dir)]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
        said = json.loads(ended.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        what = "did not answer" if isinstance(error, ValueError) else f"took over {_TIMEOUT_S:g} s"
        raise Misconfigured(f"a process that runs the task's backbones {what}: see its file") from None
    if not said["ok"]:
        raise Misconfigured(said["error"])


def keep(task: Task, folder: Path, state_dir: Path, blobs: BlobStorage | None = None) -> None:
    """Store the task's backbones: as blobs for devices, as files for child processes.

    Args:
        task: prepared.
        folder: of the task file.
        state_dir: of the coordinator.
        blobs: of the fleet; None: there are no devices.

    Raises:
        Misconfigured: a file is gone, or has changed since it was measured.
        Transient: the disk is full.
    """
    wanted = {path_of(one, state_dir): one for one in backbones(task).values()}
    for old in (state_dir / FOLDER).glob("*.onnx"):
        if old not in wanted:
            old.unlink(missing_ok=True)
    for path, one in wanted.items():
        try:
            data = files.read(folder / (one.file or ""), one.sha256)
        except Refused as error:
            raise Misconfigured(f"{folder / (one.file or '')}: {error.detail}") from None
        if blobs is not None:
            blobs.put(data)
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_bytes() != data:
            write_atomic(path, data)


def path_of(one: Backbone, state_dir: Path) -> Path:
    """Where :func:`keep` has stored its file."""
    return state_dir / FOLDER / f"{one.sha256}.onnx"


def conversion(task: Task, state_dir: Path, windows: Path, threads: int = 1) -> jobs.ConvertWindowsJob:
    """The job that computes the features of a window set."""
    paths = {name: str(path_of(one, state_dir).resolve()) for name, one in backbones(task).items()}
    return jobs.ConvertWindowsJob(task=task, paths=paths, windows=str(windows.resolve()), threads=threads)


def converted(task: Task, state_dir: Path, windows: Path) -> None:
    """Replace a window set by its features, if the task has backbones.

    Raises:
        Misconfigured: a backbone cannot be used.
    """
    if not backbones(task):
        return
    with tempfile.TemporaryDirectory(prefix="lichen-backbone-") as name:
        run(Path(name), conversion(task, state_dir, windows))
        write_atomic(windows, (Path(name) / jobs.WINDOWS).read_bytes())


@dataclass(eq=False, repr=False)
class EvaluationFile:
    """Windows to evaluate versions on, as the task is learned. Features are computed again for another file.

    Args:
        task: prepared.
        windows: the configured file; None: there is none.
        state_dir: of the coordinator.
        child: makes a child process.
        timeout_s: of the computation.
    """

    task: Task
    windows: Path | None
    state_dir: Path
    child: Callable[[str], Worker]
    timeout_s: float

    def __post_init__(self) -> None:
        self._made_of: tuple[int, int] | None = None

    async def path(self) -> Path | None:
        """The file; None if none is configured.

        Raises:
            Misconfigured, Refused, Transient: its features cannot be computed.
        """
        if self.windows is None or not backbones(self.task):
            return self.windows
        made, found = self.state_dir / FOLDER / "evaluation.npz", await asyncio.to_thread(self.windows.stat)
        version = found.st_ino, found.st_mtime_ns
        if self._made_of == version and made.is_file():
            return made
        job = conversion(self.task, self.state_dir, self.windows)
        worker = self.child(jobs.__name__)
        with tempfile.TemporaryDirectory(prefix="convert-", dir=made.parent) as name:
            await asyncio.to_thread(jobs.write_job, Path(name), job)
            try:
                await worker.run(Path(name), self.timeout_s)
            finally:
                await worker.close()
            await asyncio.to_thread(os.replace, Path(name) / jobs.WINDOWS, made)
        self._made_of = version
        return made
