"""Work that needs torch or onnx, in child processes: initial models, evaluation, export, guided rounds.

Every job has a folder under ``jobs/``, removed when it is over (and at the next start, after a crash).
"""

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from coordinator.config.versions import WorkerSettings
from coordinator.errors import no_room
from coordinator.storage.update_journal import AcceptedUpdate
from coordinator.workers.backbones import EvaluationFile
from coordinator.workers.labelled_data import announced
from coordinator.workers.start_weights import load_start_weights
from models.contract import Blobs, Evaluation, Tensors
from models.registry import methods
from models.training.evaluation import Part
from models.worker import job_folder
from protocol.bundle import pack, unpack
from protocol.errors import Refused, Transient
from protocol.frames.frame import Limits, digest
from protocol.tasks.task import Task
from runtime.process.worker import Worker, WorkerFailed
from runtime.process.worker_turns import WorkerTurns
from runtime.storage.files import full

UPDATES: Final = "updates"
"""The folder of accepted frames, beside that of jobs."""
_SECRET: Final = ("authority", "identity", "mosquitto", "trust")
_BOOK: Final = "identity.sqlite3"


def secrets_in(state_dir: Path) -> list[Path]:
    """Paths that child processes may not open: private keys and the identity store."""
    names = (*_SECRET, *(f"{_BOOK}{end}" for end in ("", "-wal", "-shm", ".backup")))
    return [state_dir.resolve() / name for name in names]


def _identity(file: Path) -> tuple[int, int] | None:
    """The identity of a file, different for another file of that name; None: it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class ExportLineage:
    """The origin of a bundle."""

    version: int
    parent: str | None
    manifest: str
    metrics: dict[str, float]
    privacy: dict[str, Any] | None = None
    secure_aggregation: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a bundle's manifest, without its base."""
        keys = ("version", "parent", "metrics", "privacy", "secure_aggregation")
        return {**{key: getattr(self, key) for key in keys}, "round": self.version}


@dataclass(frozen=True, slots=True)
class ExportedBundle:
    """An exported bundle, and the measurements of the parity gate."""

    data: bytes
    result: dict[str, object]


class Jobs(Protocol):
    """Jobs for the round driver. Each raises ``LichenError`` if it fails."""

    async def initial(self) -> Blobs:
        """Version 0."""

    async def evaluate(self, state: Blobs) -> Evaluation:
        """Evaluate a version on the configured windows."""

    async def export(self, state: Blobs, lineage: ExportLineage) -> ExportedBundle:
        """Export a version as a bundle."""

    async def features(self) -> dict[str, bytes]:
        """The task's encoder models, one for each modality."""

    async def view(
        self, state: Blobs, entries: Sequence[AcceptedUpdate], limits: Limits
    ) -> tuple[dict[str, Tensors], dict[str, Refused]]:
        """Guided round: evaluate each update's model on the labelled windows.

        Args:
            state: the version that the updates start from.
            entries: accepted updates in any order; of one job, which ends in time.
            limits: what an update may need.

        Returns:
            Views by device, and why the others have none.
        """

    async def finish(self, round_: int, seed: int, state: Blobs) -> tuple[Blobs, dict[str, float]]:
        """Guided round: train the part that devices do not train; returns the version and metrics."""

    async def close(self) -> None:
        """Stop the child processes."""


class JobRunner(Protocol):
    """Runs the jobs of folders elsewhere; see :class:`runtime.process.worker.Worker`."""

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Run one job."""

    async def close(self) -> None:
        """Stop; a running job is cut off."""


@dataclass(eq=False, repr=False)
class WorkerJobs:
    """Runs ``models.worker`` and ``export`` as child processes.

    Args:
        task: what is learned.
        root: parent of the jobs' folders.
        windows: evaluation data; None: no evaluation.
        settings: time limits and threads.
        labelled: the labelled windows that a guided method learns from
            (:func:`coordinator.workers.labelled_data.keep`).
        int8: exports get an int8 variant, calibrated on ``windows``, else on ``labelled``.
        by: parts of ``windows`` that are evaluated besides.
        packages: names of those that a task may use.
        elsewhere: runs all jobs; None: child processes of this one.
        start: weights of version 0; None: fresh ones.
        hidden: further paths that child processes may not open.
        turns: of the child processes of all tasks.
    """

    task: Task
    root: Path
    windows: Path | None
    settings: WorkerSettings
    labelled: Path | None = None
    int8: bool = True
    by: tuple[Part, ...] = ()
    packages: tuple[str, ...] = ()
    elsewhere: JobRunner | None = None
    start: Path | None = None
    hidden: Sequence[Path] = ()
    turns: WorkerTurns | None = None

    def __post_init__(self) -> None:
        self._task = announced(self.task)
        hidden, idle_s = (*secrets_in(self.root.parent), *self.hidden), self.settings.idle_s
        child = partial(Worker, idle_s=idle_s, hidden=hidden, turns=self.turns)
        judged = self._task, self.windows, self.root.parent
        self._judged = EvaluationFile(*judged, child, self.settings.timeout_s)
        self._learn = self.elsewhere or child("models.worker")
        spec = methods().get(self.task.method)
        # Warm for several bundles in a row: torch is loaded once.
        self._export = self.elsewhere or child("export", warm=spec is not None and spec.routed)
        self._one_model = spec is not None and spec.one_model
        self._exported: ExportedBundle | None = None
        self._known = None if self.windows is None else _identity(self.windows)
        shutil.rmtree(self.root, ignore_errors=True)

    async def initial(self) -> Blobs:
        """Run an init job; with ``start`` its weights are replaced.

        Raises:
            Misconfigured: those weights are not of this task.
        """
        with self._folder("init") as folder:
            job = job_folder.InitJob(
                self._task, self._task.seed, self.settings.threads, packages=self.packages
            )
            await asyncio.to_thread(job_folder.write_init, folder, job)
            await self._learn.run(folder, self.settings.timeout_s)
            fresh = await asyncio.to_thread(job_folder.read_state, folder)
        return fresh if self.start is None else await asyncio.to_thread(load_start_weights, fresh, self.start)

    async def evaluate(self, state: Blobs) -> Evaluation:
        """Run an evaluate job.

        Raises:
            Transient: no labelled windows are configured, or the worker failed.
        """
        if (windows := await self._judged.path()) is None:
            raise Transient("there are no labelled windows for the evaluation: set evaluation.data")
        with self._folder("evaluate") as folder:
            job = job_folder.EvaluateJob(
                self._task, self.settings.threads, by=self.by, packages=self.packages
            )
            await self._open_to_child(windows)
            await asyncio.to_thread(job_folder.write_evaluate, folder, job, windows, state)
            await self._learn.run(folder, self.settings.timeout_s)
            return await asyncio.to_thread(job_folder.read_evaluation, folder)

    async def export(self, state: Blobs, lineage: ExportLineage) -> ExportedBundle:
        """Run an export job; if all versions share one model, only once per start."""
        if self._exported is not None:
            return await asyncio.to_thread(_packed_again, self._exported, lineage)
        with self._folder(f"export-{lineage.version}") as folder:
            await self._write_export(folder, state, lineage)
            await self._export.run(folder, self.settings.timeout_s)
            made = await asyncio.to_thread(_read_bundle, folder)
        self._exported = made if self._one_model else None
        return made

    async def _write_export(self, folder: Path, state: Blobs, lineage: ExportLineage) -> None:
        await asyncio.to_thread(job_folder.write_state, folder / "state.npz", state)
        job = {
            "kind": "export",
            "task": self._task.model_dump(mode="json"),
            **lineage.fields,
            "manifest_digest": lineage.manifest,
            "packages": self.packages,
        }
        if self.int8 and (real := await self._judged.path() or self.labelled) is not None:
            job["calibrate"] = str(real.resolve())  # an int8 variant is calibrated on them
        await asyncio.to_thread((folder / "job.json").write_text, json.dumps(job), encoding="utf-8")

    async def features(self) -> dict[str, bytes]:
        """Run a job that makes the encoder models."""
        with self._folder("features") as folder:
            job = {"kind": "features", "task": self._task.model_dump(mode="json")}
            text = json.dumps(job | {"threads": self.settings.threads, "packages": self.packages})
            await asyncio.to_thread((folder / "job.json").write_text, text, encoding="utf-8")
            await self._export.run(folder, self.settings.timeout_s)
            return await asyncio.to_thread(_read_graphs, folder, self._task)

    async def view(
        self, state: Blobs, entries: Sequence[AcceptedUpdate], limits: Limits
    ) -> tuple[dict[str, Tensors], dict[str, Refused]]:
        """Run a view job."""
        frames = tuple(entry.frame for entry in entries)
        with self._folder("view") as folder:
            job = job_folder.ViewJob(
                self._task,
                frames,
                limits,
                self._windows_of_own(),
                self.settings.threads,
                packages=self.packages,
            )
            await self._guide(folder, job, state)
            return await asyncio.to_thread(job_folder.read_views, folder)

    async def finish(self, round_: int, seed: int, state: Blobs) -> tuple[Blobs, dict[str, float]]:
        """Run a finish job."""
        with self._folder("finish") as folder:
            own, threads = self._windows_of_own(), self.settings.threads
            job = job_folder.FinishJob(self._task, round_, seed, own, threads, packages=self.packages)
            await self._guide(folder, job, state)
            return await asyncio.to_thread(job_folder.read_finished, folder)

    async def _guide(
        self, folder: Path, job: job_folder.ViewJob | job_folder.FinishJob, state: Blobs
    ) -> None:
        await asyncio.to_thread(job_folder.write_guided, folder, job, state)
        await self._learn.run(folder, self.settings.timeout_s)

    def _windows_of_own(self) -> str:
        if self.labelled is None:
            raise Transient("there are no labelled windows to learn from: name them in the task's [labelled]")
        return str(self.labelled.resolve())

    async def _open_to_child(self, file: Path) -> None:
        """A child sees the state folder as of its start: for another file it is restarted."""
        before, self._known = self._known, await asyncio.to_thread(_identity, file)
        if self._known != before:
            await self._learn.close()

    @contextmanager
    def _folder(self, name: str) -> Iterator[Path]:
        folder = self.root / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            # A child can open what is in the state folder at its start: frames may come later.
            (self.root.parent / UPDATES).mkdir(exist_ok=True)
            yield folder
        except (OSError, WorkerFailed) as error:
            if no_room(error):
                raise full(self.root, self.root) from error
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def close(self) -> None:
        """Stop the child processes."""
        await self._learn.close()
        await self._export.close()


def _read_bundle(folder: Path) -> ExportedBundle:
    try:
        return ExportedBundle(
            (folder / "bundle.zip").read_bytes(), json.loads((folder / "result.json").read_bytes())
        )
    except (OSError, ValueError) as error:
        raise Transient(f"the export left no readable bundle in {folder}: {error}") from None


def _packed_again(before: ExportedBundle, lineage: ExportLineage) -> ExportedBundle:
    """The bundle of this version, derived from another version's export of the same model."""
    manifest, files = unpack(before.data)
    said = {**lineage.fields, "base": lineage.manifest}
    data = pack(manifest.model_copy(update=said), files)
    return ExportedBundle(data, before.result | {"size": len(data), "digest": digest(data)})


def _read_graphs(folder: Path, task: Task) -> dict[str, bytes]:
    try:
        return {name: (folder / f"{name}.onnx").read_bytes() for name in task.modality_names}
    except OSError as error:
        raise Transient(f"the export left no readable encoder model in {folder}: {error}") from None
