"""A device's rollout without its other parts: bundles in a folder, scripted models."""

import asyncio  # noqa: TC003 - one import for all
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edge_agent.config.agent import DeploySettings, TrialSettings
from edge_agent.deployment.service import DeploymentService
from protocol.errors import Transient
from protocol.messages import BlobRef, ModelPointer
from protocol.rollout import Trial
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from tests.support.agent.bundle import bundle, ref_of
from tests.support.agent.data import toy_task
from tests.support.coordinator.trial_runner import FakeRunner
from tests.support.services import beside, until

TASK = toy_task()
FOUR = TrialSettings(windows=4, deadline_s=3600)


class Shelf:
    """Replaces the fetcher: bundles are files, or do not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[str] = []
        self.gate: asyncio.Event | None = None
        """If there is one, a download lasts until it is set."""

    async def fetch(self, ref: BlobRef, timeout_s: float) -> Path:
        self.fetched.append(ref.digest)
        if self.gate is not None:
            await self.gate.wait()
        path = self.folder / ref.digest
        if not path.exists():
            raise Transient(f"not here in {timeout_s} s")
        return path

    def forget(self, digest: str) -> None:
        del digest


class Changes(Signal):
    """How often it was set."""

    count = 0

    def set(self) -> None:
        self.count += 1
        super().set()


class Device:
    """One run of the process."""

    def __init__(
        self,
        folder: Path,
        shelf: Path,
        *,
        runner: FakeRunner | None = None,
        settings: DeploySettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder = folder / "models"
        self.runner = runner or FakeRunner()
        self.shelf = Shelf(shelf)
        self.work: Any = SimpleNamespace(task=TASK, modalities=TASK.modality_names)
        self.changes = Changes()
        self.deployment = DeploymentService(
            self.folder,
            self.shelf,  # type: ignore[arg-type]  # a shelf is as good as a fetcher here
            self.runner,
            SimpleNamespace(workspace=self.work, withheld=""),
            fetch_timeout_s=1,
            changed=self.changes,
            settings=settings or DeploySettings(trial=FOUR),
            clock=clock,
        )
        self.runner.observe = self.deployment.executor.observe

    @property
    def record(self) -> Any:
        return self.deployment.record

    @property
    def running(self) -> int | None:
        """The version in use."""
        return None if self.runner.model is None else self.runner.model.manifest.version

    async def runs(self, version: int | None) -> None:
        await until(lambda: self.running == version, 20)

    async def written(self) -> None:
        """Wait until no write or removal is pending."""
        acting = self.deployment.executor
        await until(lambda: not acting._unwritten and not acting._untidy, 20)
        async with acting.coming:
            await acting.write()

    def point(self, version: int, serial: int = 0, trial: Trial | None = None, **more: Any) -> str:
        """Store the bundle of this version and offer it; returns its digest."""
        data = put(self.shelf.folder, version)
        said = ModelPointer(task="toy", version=version, bundle=ref_of(data), serial=serial, trial=trial)
        self.deployment.offer(said, **more)
        return said.bundle.digest


def put(shelf: Path, version: int) -> bytes:
    data = bundle(TASK, version)
    shelf.mkdir(parents=True, exist_ok=True)
    (shelf / ref_of(data).digest).write_bytes(data)
    return data


@asynccontextmanager
async def living(make: Callable[[], Device]) -> AsyncIterator[Device]:
    """Run its services meanwhile."""
    device = make()
    async with beside(device.deployment.run, device.deployment.executor.run, forever=True):
        yield device
