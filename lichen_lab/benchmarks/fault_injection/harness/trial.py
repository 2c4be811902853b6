"""The base of every fault trial: a small fleet, its disks, and the observer of its wire."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lichen_lab.benchmarks.fault_injection import refold
from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.disks import FaultyDisk
from lichen_lab.benchmarks.fault_injection.harness.gated_worker import LIGHT
from lichen_lab.benchmarks.fault_injection.verdict import Verdict, judge
from lichen_lab.simulation.processes.fleet_files import FleetFiles, Table
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, Testbed
from lichen_lab.simulation.processes.wire_observer import WireObserver
from models.contract import Blobs
from models.worker import job_folder
from protocol.tasks.task import Task
from runtime.logs import configure
from runtime.settings.load import LogSettings, MqttSettings


class FaultTrial:
    """A fleet under faults.

    Args:
        layout: where its files lie, in an empty folder.
        task: what it learns.
        seed: of recordings.
        changes: see :func:`small_fleet.write`.
        env: added to every process's environment.
        gated: the coordinator runs behind gates.
        light: the initial model's file for processes without torch; None: everything is real.
        disks: processes whose state is on a disk that can fail.

    Raises:
        Misconfigured: Mosquitto, or a requirement of the disks, is missing.
    """

    def __init__(
        self,
        layout: FleetFiles,
        task: Task,
        *,
        seed: int = 0,
        changes: Mapping[str, Table],
        env: Mapping[str, str] | None = None,
        gated: bool,
        light: Path | None,
        disks: Iterable[str] = (),
    ) -> None:
        self.layout, self.task, self._light = layout, task, light
        self.disks = {name: FaultyDisk(layout.root / f"{name}.ext4", layout.state(name)) for name in disks}
        small_fleet.write(layout, task, seed, changes)
        lightness = {} if light is None else {LIGHT: str(light)}
        self.stage = small_fleet.trial_bed(layout, {**(env or {}), **lightness}, gated=gated)
        self.witness = WireObserver(
            MqttSettings.model_validate(layout.mqtt("witness")),
            small_fleet.FLEET,
            layout.state(COORDINATOR) / "updates",
            layout.root / "frames",
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Testbed]:
        """The broker runs and the wire is observed; all processes are stopped on the way out."""
        async with self.stage as stage:
            await stage.start(BROKER)
            async with self.witness.watching():
                yield stage

    @property
    def round(self) -> int:
        """The round that the coordinator announced last; 0 before the first."""
        now = self.witness.view.round
        return 0 if now is None else now.round

    def finished(self) -> bool:
        """Whether the coordinator has ended with status 0: all rounds are over."""
        return self.stage.ended(COORDINATOR)

    async def verdict(self) -> Verdict:
        """Check the whole run."""
        return await asyncio.to_thread(judge, self.layout, self.task, self.witness, self._initial)

    def _initial(self, task: Task, folder: Path) -> Blobs:
        """The expected initial model."""
        return refold.initial(task, folder) if self._light is None else job_folder.load_state(self._light)

    def close(self) -> None:
        """Remove the disks."""
        for disk in self.disks.values():
            disk.close()


class TrialOutcome(Protocol):
    """The result of a trial."""

    @property
    def sound(self) -> bool:
        """Whether every promise held."""


TrialOutcomeT = TypeVar("TrialOutcomeT", bound=TrialOutcome)


def run_in_folder(
    name: str, keep: Path | None, trial: Callable[[Path], Coroutine[Any, Any, TrialOutcomeT]]
) -> tuple[TrialOutcomeT, Path | None]:
    """Run a trial in a folder of its own; returns its outcome, and the folder if it is kept.

    Args:
        name: of the folder.
        keep: parent of the folder if the run failed or was not sound; None: it is removed.
        trial: runs in that folder.
    """
    configure(LogSettings(level="error"))  # the observer's own link; the processes have their logs
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    root, kept = Path(tempfile.mkdtemp(prefix=f"lichen-{name}-", dir=keep)), keep is not None
    try:
        outcome = asyncio.run(trial(root))
        kept = kept and not outcome.sound
        return outcome, root if kept else None
    finally:
        if not kept:
            shutil.rmtree(root, ignore_errors=True)
