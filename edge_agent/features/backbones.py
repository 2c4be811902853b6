"""The backbones of the task: fetched once, each run in a process of its own, applied to each window once.

A modality is missing in windows while its backbone is not here: the others go on. What it waits for is in
``lichen agent status --why``.

Shapes: B windows, M modalities, D features.
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.features.feature_process import FeatureProcess
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.storage.device_blobs import DeviceBlobs
from models.backbones.views import backbones, sensed
from models.contract import FloatArray
from models.data.streams.windows import Windows
from protocol.errors import Reason, Refused, Transient
from protocol.messages import BlobRef
from protocol.tasks.kinds import Backbone
from protocol.tasks.task import Modality, Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.pacing import backoff_s
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from runtime.waits import StatusPart, Wait

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S: Final = 5.0
_LAST_PAUSE_S: Final = 300.0
_BATCH_TIMEOUT_S: Final = 20.0
"""Seconds for the features of one modality in windows that were cut together."""
_OWNER: Final = "backbones"


@dataclass(eq=False)
class _Use:
    """One backbone in use.

    Attributes:
        modality: what the sensor delivers, with the backbone.
        samples: T of its windows.
        process: runs it; None: not now.
        task: fetches and opens it.
        failed: set when the process has failed.
        why: why it is not run.
        since: of ``why``, unix seconds.
        until: when it is tried again, unix seconds; None: it is tried now.
        refused: it can never be run.
        failures: in a row.
        windows: that it has made features of.
    """

    modality: Modality
    samples: int
    why: str
    since: float
    until: float | None = None
    process: FeatureProcess | None = None
    task: asyncio.Task[None] | None = None
    failed: Signal = field(default_factory=Signal)
    refused: bool = False
    failures: int = 0
    windows: int = 0

    @property
    def backbone(self) -> Backbone:
        return self.modality.backbone or Backbone()

    @property
    def key(self) -> tuple[Modality, int]:
        """Of one that may stay when the task changes."""
        return self.modality, self.samples

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.close()
        self.process = None

    def end(self) -> None:
        """End the process and the task."""
        self.close()
        if self.task is not None:
            self.task.cancel()


@dataclass(eq=False, repr=False)
class Backbones(StatusPart):
    """One service; see :class:`edge_agent.ports.MakesFeatures`.

    Args:
        settings: of the agent.
        blobs: of the device; those that the task needs are not removed.
        fetcher: fetches them.
        zygote: starts their processes.
        clock: the time.
        changed: set when the device refuses a backbone, or no longer does.
        shared: knows the blobs of the device's other tasks.
    """

    settings: AgentSettings
    blobs: BlobStore
    fetcher: Fetcher
    zygote: ZygoteClient
    clock: Clock
    changed: Signal
    shared: DeviceBlobs = field(default_factory=DeviceBlobs)

    def __post_init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._collected: frozenset[str] = frozenset()
        self._wake = Signal()

    @property
    def refusal(self) -> str:
        """Why this device cannot do the task: none of its modalities is left; empty if it can."""
        refused = {name: use.why for name, use in self._uses.items() if use.refused}
        left = self._collected - refused.keys()
        return "; ".join(refused.values()) if refused and not left else ""

    def use(self, task: Task, modalities: Collection[str]) -> None:
        """As :meth:`edge_agent.ports.MakesFeatures.use`."""
        raw, before = sensed(task), {use.key: use for use in self._uses.values()}
        self._collected = frozenset(modalities)
        self._uses = {}
        for name in backbones(task):
            if name in self._collected:
                fresh = _Use(raw.modality(name), raw.samples(name), "it is fetched", self.clock.wall())
                self._uses[name] = before.pop(fresh.key, fresh)
        for old in before.values():
            old.end()
        self.blobs.pin(_OWNER, [use.backbone.sha256 or "" for use in self._uses.values()])
        self._wake.set()
        self.changed.set()

    def leave(self) -> None:
        """As :meth:`edge_agent.ports.MakesFeatures.leave`."""
        for use in self._uses.values():
            use.end()
        self._uses, self._collected = {}, frozenset()
        self.blobs.pin(_OWNER, ())
        self.changed.set()

    async def features(self, task: Task, windows: Windows) -> Windows:
        """As :meth:`edge_agent.ports.MakesFeatures.features`."""
        x, covered, present_BM = dict(windows.x), dict(windows.covered), windows.present_BM.copy()
        for name in backbones(task):
            column = task.modality_names.index(name)
            z_BD = await self._made(
                name, windows.x[name], present_BM[:, column], task.modality(name).channels
            )
            if z_BD is None:
                present_BM[:, column] = False
                z_BD = np.zeros((len(windows), task.modality(name).channels), np.float32)
            x[name], covered[name] = z_BD[:, :, None], present_BM[:, column, None].copy()
        return replace(windows, x=x, covered=covered, present_BM=present_BM)

    async def _made(self, name: str, x_BCT: FloatArray, present_B: Any, dim: int) -> FloatArray | None:
        """The features of a modality, zeros where it is missing; None if its backbone cannot be run now."""
        use = self._uses.get(name)
        if use is None or use.process is None:
            return None
        z_BD, rows_N = np.zeros((len(x_BCT), dim), np.float32), np.flatnonzero(present_B)
        if not len(rows_N):
            return z_BD
        try:
            z_BD[rows_N] = await use.process.run(x_BCT[rows_N], {}, _BATCH_TIMEOUT_S)
        except (Refused, Transient) as error:
            self._failed(use, f"it does not run: {error.detail if isinstance(error, Refused) else error}")
            return None
        use.windows += len(rows_N)
        use.failures = 0
        return z_BD

    async def run(self) -> None:
        """Fetch and open backbones, for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for use in self._uses.values():
                        if use.task is None:
                            use.task = group.create_task(self._tend(use))
                    await self._wake.wait()
        finally:
            for use in self._uses.values():
                use.end()

    async def _tend(self, use: _Use) -> None:
        """Open one backbone, and open it again after it failed."""
        while not use.refused:
            await self._open(use)
            if use.process is not None:
                await use.failed.wait()
            if use.until is not None:
                await self.clock.sleep(max(0.0, use.until - self.clock.wall()))

    async def _open(self, use: _Use) -> None:
        backbone, process = use.backbone, FeatureProcess(self.zygote)
        ref = BlobRef(digest=backbone.sha256 or "", size=backbone.size or 0)
        use.until = None
        use.failed.clear()
        try:
            self._require_size(ref)
            fetch = partial(self.fetcher.fetch, ref, self.settings.fetch_timeout_s)
            await self.shared.obtain(ref, self.blobs, fetch)
            path = self.blobs.path(ref.digest)
            await process.open_backbone(path, use.modality, use.samples, self.settings.learn.threads)
        except Refused as error:
            process.close()
            if error.reason is Reason.WRONG_DIGEST:  # perhaps damaged on the way or on the disk: again, later
                self.blobs.remove(ref.digest)
                self._failed(use, f"it cannot be used: {error.detail}")
            else:
                self._refuse(use, error.detail)
        except Transient as error:
            process.close()
            self._failed(use, str(error))
        except BaseException:
            process.close()
            raise
        else:
            use.process, use.why = process, ""
            _log.info("backbone_opened", modality=use.modality.name, features=process.dim, blob=ref.digest)

    def _require_size(self, ref: BlobRef) -> None:
        if ref.size > self.settings.blob_budget_bytes:
            raise Refused(
                Reason.TOO_LARGE,
                f"{ref.size} bytes; this device stores {self.settings.blob_budget_bytes} (blob_budget_bytes)",
            )

    def _refuse(self, use: _Use, words: str) -> None:
        use.refused, use.why, use.since = True, self._words(use, words), self.clock.wall()
        _log.error("backbone_refused", why=use.why)
        self.changed.set()

    def _failed(self, use: _Use, words: str) -> None:
        use.close()
        pause, use.failures = backoff_s(_FIRST_PAUSE_S, _LAST_PAUSE_S, use.failures), use.failures + 1
        if not use.why:
            use.since = self.clock.wall()
        use.why, use.until = self._words(use, words), self.clock.wall() + pause
        _log.warning("backbone_not_run", why=use.why, again_in_s=round(pause, 1))
        use.failed.set()

    def _words(self, use: _Use, words: str) -> str:
        return f"backbone of {use.modality.name} ({(use.backbone.sha256 or '')[:12]}): {words}"[:400]

    def status(self) -> dict[str, Any]:
        """By modality, the digest, and the windows that it made features of; or why not."""
        return {
            "backbones": {
                name: {"sha256": use.backbone.sha256, "windows": use.windows, "why": use.why or "ok"}
                for name, use in self._uses.items()
            }
        }

    def waits(self) -> Iterator[Wait]:
        """The wait for each backbone that is not run."""
        for use in self._uses.values():
            if use.process is not None:
                continue
            then = "until the coordinator announces another" if use.refused else "it is tried again"
            if not use.refused and use.until is None:
                then = "until it is here"
            without = f"{use.why}; {use.modality.name} is missing in windows until then"
            yield Wait("backbone", without, use.since, None if use.refused else use.until, then)
