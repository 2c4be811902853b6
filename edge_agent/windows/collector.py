"""Cuts the samples of the sources into windows, scores them, stores them and passes them to a listener.

Sources feed the windower directly (it limits what it buffers); one loop cuts, scores and stores. If the grid
of the task changes, windower, meter and store are replaced together, between two windows.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.ports import MakesFeatures
from edge_agent.sources.base import FollowsTask, Source, source_status
from edge_agent.sources.shared import SourceTap
from edge_agent.sources.task_match import doubts, matching_modalities
from edge_agent.tasks.profile import permitted_profile
from edge_agent.tasks.roles import learning_role
from edge_agent.windows.counting_store import CountingStore
from edge_agent.windows.live.live_signal import LiveSignal
from edge_agent.windows.observed_profile import collected_modalities
from edge_agent.windows.quality.meter import Quality, QualityMeter, ScoredWindows
from edge_agent.windows.rows import whole_bytes
from edge_agent.windows.store import WindowStore
from edge_agent.windows.store_file import grid_digest, values_within
from edge_agent.windows.window_sets import to_window_set, with_a_modality
from edge_agent.windows.workspace import WindowWorkspace
from models.backbones.views import backbones, sensed
from models.data.streams.windows import Windower, Windows
from protocol.errors import Transient
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.pacing import backoff_s
from runtime.process.daemon import Progress
from runtime.waits import StatusPart

_log = structlog.get_logger(__name__)
_FIRST_BACKOFF_S: Final = 1.0
_LAST_BACKOFF_S: Final = 60.0


@dataclass
class ModalityTotal:
    """Windows that had the modality, and the sum of their qualities."""

    windows: int = 0
    quality: float = 0.0


@dataclass(eq=False, repr=False)
class Collector(StatusPart):
    """Creates the workspace of a task on windows, and fills it.

    Args:
        settings: of the agent.
        sources: opened.
        clock: stamps the arrival of samples.
        listener: gets the windows after the store.
        changed: set for each of them.
        progress: each cutting of windows is one unit of work.
        live: for those who look at the device.
        features: runs the backbones of tasks; None: their modalities are missing.
    """

    settings: AgentSettings
    sources: Sequence[Source]
    clock: Clock
    listener: Callable[[ScoredWindows], None]
    changed: Signal
    progress: Progress
    live: LiveSignal = field(default_factory=LiveSignal)
    features: MakesFeatures | None = None

    def __post_init__(self) -> None:
        self._wake = Signal()
        self._has_task = asyncio.Event()
        self._committed = 0.0
        self.workspace: WindowWorkspace | None = None
        self.restarts: dict[str, int] = {}
        """Failures at run time, by source."""
        self.finished: set[str] = set()
        self.doubts: tuple[str, ...] = ()
        self.totals: dict[str, ModalityTotal] = {}
        """Windows since the start, by modality of the present task."""
        """Mismatches between the sources' descriptions and the task."""

    async def use(self, task: Task) -> WindowWorkspace:
        """Collect for this task from now on. A store of the same grid is kept, another one is replaced."""
        old, learn, raw = self.workspace, self.settings.learn, sensed(task)
        for source in self.sources:
            if isinstance(source, FollowsTask):
                source.follow(raw)
        self.live.use(raw)
        self.doubts = tuple(await asyncio.to_thread(doubts, task, self.sources))
        delivered = matching_modalities(task, self.sources)
        profile = permitted_profile(task, delivered, learn)
        names = collected_modalities(task, delivered, profile)
        if self.features is not None:
            self.features.use(task, names)
        if old is not None and grid_digest(old.task) == grid_digest(task):
            await asyncio.to_thread(old.store.use, task)
            if old.windower.differs(raw, names):
                old.windower.use(raw, names)
            old.task, old.modalities, old.targets = task, profile.modalities, profile.targets
            return old
        store = await asyncio.to_thread(_open_store, self.settings, task)
        work = self.workspace = WindowWorkspace(
            task,
            profile.modalities,
            Windower(raw, names, self.settings.windows.lateness_s),
            QualityMeter(raw, self.settings.quality),
            store,
            targets=profile.targets,
            by=learning_role(self.settings, task),
        )
        if old is not None:
            await asyncio.to_thread(old.store.close)
        if others := await asyncio.to_thread(_remove_others, store):
            _log.warning("old_windows_removed", detail="the grid of the task changed", windows=others)
        self._has_task.set()
        _log.info("collecting", task=task.name, modalities=names, reads=profile.modalities)
        return work

    async def leave(self) -> None:
        """Stop collecting: the task is not on windows. Stored windows stay for a task of the same grid."""
        old, self.workspace = self.workspace, None
        self._has_task.clear()
        if self.features is not None:
            self.features.leave()
        for source in self.sources:
            if isinstance(source, SourceTap):
                source.leave()
        if old is not None:
            await asyncio.to_thread(old.close)

    async def run_source(self, source: Source) -> None:
        """Feed one source for ever; after a failure, wait and start again (the gap is masked)."""
        failures = 0
        while True:
            await self._has_task.wait()
            try:
                stream: Any = source.samples()
                async with aclosing(stream):
                    async for batch in stream:
                        if self.workspace is None:
                            break  # the task has ended: nobody needs the sensor
                        self.workspace.windower.feed(batch, self.clock.now())
                        self.live.feed(batch)
                        self._wake.set()
                        failures = 0
                    else:
                        self.finished.add(source.name)
                        _log.info("source_ended", source=source.name)
                        return
            except (OSError, Transient) as error:
                self.restarts[source.name] = self.restarts.get(source.name, 0) + 1
                pause, failures = backoff_s(_FIRST_BACKOFF_S, _LAST_BACKOFF_S, failures), failures + 1
                _log.warning("source_failed", source=source.name, error=str(error), again_in_s=pause)
                await self.clock.sleep(pause)

    async def run(self) -> None:
        """Cut, score and store windows; commit at intervals."""
        await self._has_task.wait()
        self._committed = self.clock.now()
        try:
            while True:
                await self._wait()
                work = self.workspace
                if work is not None:
                    with self.progress.work("cutting windows"):
                        await self._step(work)
                        await self._commit_if_due(work)
        finally:
            if self.workspace is not None:
                self.workspace.store.close()

    def status(self) -> dict[str, Any]:
        """The status of the sources."""
        return {
            "data_warnings": list(self.doubts),
            "source_failures": self.restarts,
            "sources": {s.name: source_status(s) for s in self.sources},
            "sources_ended": sorted(self.finished),
        }

    async def _wait(self) -> None:
        """Wait for samples, or until late or uncommitted windows may be due."""
        pause = min(self.settings.windows.lateness_s / 2, self.settings.store.commit_every_s)
        await self._wake.wait(pause)

    async def _step(self, work: WindowWorkspace) -> None:
        while self.workspace is work and (windows := work.windower.poll(self.clock.now())) is not None:
            quality = work.meter.judge(windows)
            self.live.judged(ScoredWindows(work.task, windows, quality, self.clock.now()))
            if backbones(work.task) and self.features is not None:
                windows = await self.features.features(work.task, windows)
                if self.workspace is not work:  # another task meanwhile
                    return
                windows, quality = with_a_modality(windows, quality)
                if not len(windows):  # their backbone is not here yet
                    self.progress.tick("cutting windows")
                    continue
            work.recent.extend(quality.found_BMR)
            self._count(work.task, windows, quality)
            work.store.add(to_window_set(windows, quality), windows.start_B)
            self.progress.tick("cutting windows")
            scored = ScoredWindows(work.task, windows, quality, self.clock.now())
            self.listener(scored)
            self.changed.set()
            await self._commit_if_due(work)
            await asyncio.sleep(0)

    def _count(self, task: Task, windows: Windows, quality: Quality) -> None:
        if self.totals.keys() != set(task.modality_names):  # another task
            self.totals = {name: ModalityTotal() for name in task.modality_names}
        present_M = windows.present_BM.sum(axis=0)
        quality_M = (quality.quality_BM * windows.present_BM).sum(axis=0)
        for total, count, score in zip(self.totals.values(), present_M, quality_M, strict=True):
            total.windows += int(count)
            total.quality += float(score)

    async def _commit_if_due(self, work: WindowWorkspace) -> None:
        due = self.clock.now() - self._committed >= self.settings.store.commit_every_s
        if work.store.pending and (due or work.store.is_due):
            self._committed = self.clock.now()
            await asyncio.to_thread(work.store.commit)


def _open_store(settings: AgentSettings, task: Task) -> WindowStore | CountingStore:
    """The store on disk, or a counting store if this device stores no windows."""
    folder, why = settings.state_dir / "store", ""
    if settings.store.enabled is False:
        why = "store.enabled is false"
    elif settings.store.enabled is None and learning_role(settings, task) is None:
        why = "this device does not learn (roles); store.enabled = true stores its windows anyway"
    if not why:
        budget = values_within(settings.store.budget_bytes, whole_bytes(task))
        by = settings.device if settings.evaluation.enabled else None
        return WindowStore(folder, task, budget, holdout_of=by)
    if unused := sorted(folder.glob("windows-*.sqlite3")):
        _log.warning("old_windows_left", files=[str(path) for path in unused], why=why)
    return CountingStore(folder / "none", task, why)


def _remove_others(store: WindowStore | CountingStore) -> list[str]:
    """Remove the windows of other grids (the budget is for one store); returns the names of removed files."""
    if store.disabled_reason:
        return []
    files = sorted(store.path.parent.glob("windows-*.sqlite3*"))
    others = [path for path in files if not path.name.startswith(store.path.name)]
    for path in others:
        path.unlink(missing_ok=True)
    return [path.name for path in others]
