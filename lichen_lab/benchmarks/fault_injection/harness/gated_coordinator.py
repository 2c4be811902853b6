"""The real coordinator with gates: ``python -P -m ...harness.gated_coordinator coordinator.toml``.

Gates: ``check-<round>-<device>`` before an update is journaled, ``aggregate-<round>``, ``evaluate-<version>``
and ``export-<version>``; in guided rounds ``view-<round>`` and ``finish-<round>``. With ``LIGHT`` in the
environment no torch and no onnx are loaded: the initial model comes from a file, the evaluation is empty, and
the bundle is a few bytes.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from coordinator.app import open_coordinator
from coordinator.config.coordinator import load_settings
from coordinator.storage.update_journal import AcceptedUpdate
from coordinator.task import load_task
from coordinator.workers.jobs import ExportedBundle, ExportLineage, Jobs, WorkerJobs
from coordinator.workers.labelled_data import FILE
from lichen_lab.benchmarks.fault_injection.harness.gated_worker import LIGHT
from lichen_lab.benchmarks.fault_injection.harness.gates import gate
from models.contract import Blobs, Evaluation, Fold, Server, Tensors, Update
from models.worker import job_folder as jobs
from protocol.errors import Refused
from protocol.frames.frame import Limits
from protocol.tasks.task import Task
from runtime import logs
from runtime.process.daemon import run


class GatedServer:
    """The method's server; all but two of its functions are unchanged."""

    def __init__(self, inner: Server) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Wait before the result: the update is received whole, and not yet in a journal."""
        gate(f"check-{update.header.round}-{update.header.device}")
        self._inner.check(task, state, update)

    def open(self, task: Task, round_: int, state: Blobs) -> Fold:
        """Wait before the first update is folded."""
        gate(f"aggregate-{round_}")
        return self._inner.open(task, round_, state)


class GatedJobs:
    """The jobs of child processes, each behind its gate; ``light``: without children."""

    def __init__(self, inner: Jobs, light: Path | None) -> None:
        self._inner = inner
        self._light = light
        self._version: Callable[[], int] = lambda: -1

    def follow(self, version: Callable[[], int]) -> None:
        """``version``: the newest, which is evaluated."""
        self._version = version

    async def initial(self) -> Blobs:
        """Version 0."""
        return await self._inner.initial() if self._light is None else jobs.load_state(self._light)

    async def evaluate(self, state: Blobs) -> Evaluation:
        """Evaluate the newest version."""
        await asyncio.to_thread(gate, f"evaluate-{self._version()}")
        if self._light is None:
            return await self._inner.evaluate(state)
        return Evaluation({"accuracy": 0.5}, [[0] * 3] * 3)

    async def export(self, state: Blobs, lineage: ExportLineage) -> ExportedBundle:
        """Export a version."""
        await asyncio.to_thread(gate, f"export-{lineage.version}")
        if self._light is None:
            return await self._inner.export(state, lineage)
        return ExportedBundle(f"version {lineage.version}".encode(), {})

    async def features(self) -> dict[str, bytes]:
        """Make the encoder models."""
        await asyncio.to_thread(gate, "features")
        return await self._inner.features()

    async def view(
        self, state: Blobs, entries: Sequence[AcceptedUpdate], limits: Limits
    ) -> tuple[dict[str, Tensors], dict[str, Refused]]:
        """Make the views of a guided round's updates."""
        await asyncio.to_thread(gate, f"view-{self._version() + 1}")
        return await self._inner.view(state, entries, limits)

    async def finish(self, round_: int, seed: int, state: Blobs) -> tuple[Blobs, dict[str, float]]:
        """Do the coordinator's training of a guided round."""
        await asyncio.to_thread(gate, f"finish-{round_}")
        return await self._inner.finish(round_, seed, state)

    async def close(self) -> None:
        """Stop the children."""
        await self._inner.close()


async def _serve(config: Path) -> int:
    settings = load_settings(config)
    logs.configure(settings.log)
    task, spec = load_task(settings)
    light = os.environ.get(LIGHT)
    root = settings.state_dir
    labelled = None if task.labelled is None else root / FILE
    real = WorkerJobs(task, root / "jobs", settings.evaluation.data, settings.worker, labelled)
    work = GatedJobs(real, None if light is None else Path(light))
    server = cast("Server", GatedServer(spec.server()))
    async with open_coordinator(settings, task, server, jobs=work) as coordinator:
        work.follow(lambda: coordinator.driver.state.version)
        return await coordinator.run()


if __name__ == "__main__":
    sys.exit(run(lambda: _serve(Path(sys.argv[1]))))
