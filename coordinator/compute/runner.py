"""The daemon's side of the cluster: sends job folders to the child process that is its client."""

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from coordinator.aggregation.fold import UnusableUpdates
from coordinator.aggregation.outlier_screen import Magnitudes
from coordinator.aggregation.round_fold import LOOKS, LocalFolds, RoundUpdates
from coordinator.compute import fold_job
from coordinator.compute.fold_job import ClusterJob, FoldJob, HelloJob, MeasureJob
from coordinator.config.compute import ComputeSettings
from coordinator.errors import in_words
from coordinator.workers.jobs import UPDATES, secrets_in
from models.contract import Blobs, Server
from models.guided import DeviceWeights
from protocol.errors import Misconfigured, Refused, Transient
from runtime.process.worker import Unreachable, Worker, WorkerFailed

_VIEWS_A_JOB: Final = 64 * LOOKS
"""The child cuts them into tasks."""
_HELLO_S: Final = 120.0
_EXPORTS: Final = ("export", "features")

log = structlog.get_logger(__name__)


class ClusterRunner:
    """Runs job folders on a Ray cluster (:class:`coordinator.workers.jobs.JobRunner`).

    Args:
        settings: which cluster, and whether child processes replace it while it is gone.
        root: parent of the jobs' folders.
        idle_s: the child ends after this time without a job.
    """

    def __init__(self, settings: ComputeSettings, root: Path, idle_s: float) -> None:
        self._settings, self._root = settings, root
        hidden = secrets_in(root.parent)
        self._child = Worker(
            "coordinator.compute", idle_s=idle_s, hidden=hidden, env={"LICHEN_RAY": settings.ray}
        )
        # They start with their first job.
        self._instead = {
            name: Worker(name, idle_s=idle_s, hidden=hidden) for name in ("models.worker", "export")
        }

    async def require(self) -> None:
        """Connect once, before anything else starts.

        Raises:
            Misconfigured: the cluster cannot be used, or not be reached and nothing replaces it.
        """
        try:
            await self._hello()
        except WorkerFailed as error:
            raise Misconfigured(f"compute.ray = {self._settings.ray!r}: {in_words(error)}") from None
        except Unreachable as error:
            if not self._settings.fallback:
                raise Misconfigured(
                    f"{error}; start the cluster, correct compute.ray, or set compute.fallback = true"
                ) from None
            log.warning("cluster_gone", why=str(error), instead="child processes")

    async def _hello(self) -> None:
        with self.folder("hello") as folder:
            await asyncio.to_thread(fold_job.write_job, folder, HelloJob())
            await self._child.run(folder, _HELLO_S)

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Run one job; with ``compute.fallback`` in a child process while the cluster is gone.

        Raises:
            Unreachable: the cluster is gone.
            WorkerFailed, Misconfigured, Refused: as :meth:`runtime.process.worker.Worker.run`.
        """
        try:
            await self.run_on_cluster(job_dir)
        except Unreachable as error:
            if not self._settings.fallback:
                raise
            log.warning("cluster_gone", why=str(error), instead="child processes")
            kind = await asyncio.to_thread(fold_job.kind_of, job_dir)
            await self._instead["export" if kind in _EXPORTS else "models.worker"].run(job_dir, timeout_s)

    async def run_on_cluster(self, job_dir: Path) -> None:
        """Run one job on the cluster; raises as :meth:`run`."""
        try:
            await self._child.run(job_dir, self._settings.timeout_s)
        except WorkerFailed:
            await self._hello()  # raises Unreachable if that is why: Ray ends a client that lost its cluster
            raise

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """An empty folder for a job, removed at the end."""
        folder = self._root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # The child can open what is in the state folder at its start: frames may come later.
        (self._root.parent / UPDATES).mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def close(self) -> None:
        """Stop the child processes; a local cluster ends with its child."""
        for worker in (self._child, *self._instead.values()):
            await worker.close()


class ClusterFolds:
    """A :class:`coordinator.aggregation.round_fold.FoldRunner` on a cluster."""

    views_a_job = _VIEWS_A_JOB

    def __init__(self, runner: ClusterRunner, settings: ComputeSettings) -> None:
        self._runner, self._settings = runner, settings
        self._local = LocalFolds()

    async def screen(
        self, updates: RoundUpdates, before: Mapping[str, float], known: Mapping[str, Magnitudes]
    ) -> dict[str, float]:
        """Measure on the cluster what was not measured on arrival, then compare here."""
        new = [entry for entry in updates.entries if entry.digest not in known]
        norms: dict[str, Magnitudes] = {}
        if len(new) > 1:
            job = MeasureJob(fold_job.frames_of(new), updates.limits, self._settings.updates_a_task)
            try:
                by_device, lost = await self._measured(job)
            except Unreachable as error:
                self._require_fallback(error)
            else:
                if lost:
                    raise UnusableUpdates(lost)
                norms = {entry.digest: by_device[entry.device] for entry in new}
        return await self._local.screen(updates, before, {**known, **norms})

    async def _measured(self, job: MeasureJob) -> tuple[dict[str, dict[str, float]], dict[str, Refused]]:
        with self._runner.folder("measure") as folder:
            await self._run(folder, job)
            return await asyncio.to_thread(fold_job.read_norms, folder)

    async def fold(
        self, server: Server, updates: RoundUpdates, state: Blobs, weighing: DeviceWeights | None
    ) -> Blobs:
        """Fold in tasks; see :mod:`coordinator.aggregation.partition`."""
        frames, each = fold_job.frames_of(updates.entries), self._settings.updates_a_task
        weights = None if weighing is None else {part: dict(of) for part, of in weighing.weights.items()}
        job = FoldJob(updates.task, updates.round, frames, updates.limits, each, weights)
        if (noise := updates.noise) is not None:
            job = replace(job, privacy=noise.privacy, noise_key=noise.key.hex())
        try:
            with self._runner.folder("fold") as folder:
                await self._run(folder, job, state)
                made, lost = await asyncio.to_thread(fold_job.read_fold, folder)
        except Unreachable as error:
            self._require_fallback(error)
            return await self._local.fold(server, updates, state, weighing)
        if lost:
            raise UnusableUpdates(lost)
        return made

    async def _run(self, folder: Path, job: ClusterJob, state: Blobs | None = None) -> None:
        await asyncio.to_thread(fold_job.write_job, folder, job, state)
        await self._runner.run_on_cluster(folder)

    def _require_fallback(self, error: Transient) -> None:
        if not self._settings.fallback:
            raise error
        log.warning("cluster_gone", why=str(error), instead="this process")
