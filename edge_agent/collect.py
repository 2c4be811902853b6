"""From sources to judged windows: the store gets them, and whoever listens.

Sources feed the windower directly (it bounds what it keeps); one loop cuts, judges and stores. When the
task's grid changes, windower, meter and store are replaced together, between two windows.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from edge_agent.config import AgentSettings
from edge_agent.offline import as_window_set
from edge_agent.profile import allowed, collected, follows_windows, readable, served, shown
from edge_agent.quality import REASONS, Quality, QualityMeter
from edge_agent.roles import learns_by
from edge_agent.sources.base import Following, Source
from edge_agent.store import Store, grid_digest
from edge_agent.tally import Stock
from models import registry
from models.contract import Profile
from models.streams.windows import Windower, Windows
from protocol.errors import Transient
from protocol.messages import Role
from protocol.task import LABEL, Task
from runtime.clock import Clock
from runtime.supervise import Progress

_log = structlog.get_logger("edge_agent.collect")
_FIRST_BACKOFF_S: Final = 1.0
_LAST_BACKOFF_S: Final = 60.0
_RECENT: Final = 50
"""Windows over which the reasons of the state message are counted."""
_OFTEN: Final = 0.2
"""A reason is reported when it was found in this share of them."""


@dataclass(frozen=True)
class Judged:
    """Windows with their quality; ``closed`` is when (monotonic seconds)."""

    task: Task
    windows: Windows
    quality: Quality
    closed: float


@dataclass
class Workspace:
    """What belongs to one task."""

    task: Task
    modalities: tuple[str, ...]
    """Those that this device may read, in the task's order."""
    windower: Windower
    meter: QualityMeter
    store: Store
    recent: deque[NDArray[np.bool_]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    targets: tuple[str, ...] = (LABEL,)
    """Those that it may learn, in the task's order."""
    by: Role | None = "train"
    """The role in which it takes offers; None: it only observes."""

    @property
    def needs_labels(self) -> bool:
        """Whether windows teach nothing without a label: prototypes are of classes, whatever the method."""
        return registry.method(self.task.method).needs_labels or self.by == "prototype"

    @property
    def allowed(self) -> Profile:
        """What it may read and predict."""
        return Profile(self.modalities, self.targets)

    def standing(self, stock: Stock) -> tuple[Profile, int]:
        """What it reads and predicts as its windows are now, and how many of them it could learn from."""
        if follows_windows(self.task):
            profile, useful = shown(self.task, self.allowed, stock.kinds)
            if self.by is not None and useful:
                return profile, useful
            return served(self.task, self.allowed, stock.kinds), useful
        if self.needs_labels:
            return Profile(self.modalities), stock.labelled
        return Profile(self.modalities), readable(self.task, self.allowed, stock.kinds)

    def reasons(self) -> Mapping[str, tuple[str, ...]]:
        """By modality, what was often found of late."""
        if not self.recent:
            return {}
        often_MR = np.mean(self.recent, axis=0) >= _OFTEN
        return {
            name: tuple(word for word, found in zip(REASONS, often_MR[m], strict=True) if found)
            for m, name in enumerate(self.task.modality_names)
        }


def offered(task: Task, sources: Iterable[Source]) -> tuple[str, ...]:
    """The task's modalities that the sources deliver with the right channels, in the task's order."""
    have: dict[str, int] = {}
    for source in sources:
        have |= source.channels
    return tuple(m.name for m in task.modalities if have.get(m.name) == m.channels)


def misfits(task: Task, sources: Iterable[Source]) -> list[str]:
    """In words, what sources deliver that the task cannot use."""
    words = []
    for source in sources:
        for name, channels in source.channels.items():
            if name not in task.modality_names:
                known = ", ".join(task.modality_names)
                words.append(
                    f"{source.name}: modality {name!r} is not in task {task.name!r} (it has {known})"
                )
            elif channels != task.modality(name).channels:
                wanted = task.modality(name).channels
                words.append(
                    f"{source.name}: modality {name!r} has {channels} channels, the task says {wanted}"
                )
    return words


class Collector:
    """Owns the workspace."""

    def __init__(
        self,
        settings: AgentSettings,
        sources: Sequence[Source],
        *,
        clock: Clock,
        listener: Callable[[Judged], None],
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._clock = clock
        self._listener = listener
        self._progress = progress
        self._wake = asyncio.Event()
        self._has_task = asyncio.Event()
        self._committed = 0.0
        self.workspace: Workspace | None = None
        self.restarts: dict[str, int] = {}
        """Failures at run time, by source."""
        self.finished: set[str] = set()

    async def use(self, task: Task) -> None:
        """Collect for this task from now on; windows of the same grid are kept, others are left behind."""
        old, learn = self.workspace, self._settings.learn
        for source in self._sources:
            if isinstance(source, Following):
                source.follow(task)
        delivered = offered(task, self._sources)
        profile = allowed(task, delivered, learn)
        names = collected(task, delivered, profile)
        if old is not None and grid_digest(old.task) == grid_digest(task):
            if old.windower.differs(task, names):
                await asyncio.to_thread(old.store.use, task)
                old.windower.use(task, names)
            old.task, old.modalities, old.targets = task, profile.modalities, profile.targets
            return
        store = await asyncio.to_thread(
            Store, self._settings.state_dir / "store", task, self._settings.store.budget_bytes
        )
        self.workspace = Workspace(
            task,
            profile.modalities,
            Windower(task, names, self._settings.windows.lateness_s),
            QualityMeter(task, self._settings.quality),
            store,
            targets=profile.targets,
            by=learns_by(self._settings),
        )
        if old is not None:
            await asyncio.to_thread(old.store.close)
            await asyncio.to_thread(_remove, old.store)
            _log.warning("the task has another grid: its windows were dropped", windows=old.store.path.name)
        self._has_task.set()
        _log.info("collecting", task=task.name, modalities=names, reads=profile.modalities)

    async def run_source(self, source: Source) -> None:
        """Feed one source for ever; a failure waits and begins again (a gap is a mask)."""
        await self._has_task.wait()
        backoff = _FIRST_BACKOFF_S
        while True:
            try:
                async for batch in source.samples():
                    if self.workspace is not None:
                        self.workspace.windower.feed(batch, self._clock.now())
                        self._wake.set()
                    backoff = _FIRST_BACKOFF_S
            except (OSError, Transient) as error:
                self.restarts[source.name] = self.restarts.get(source.name, 0) + 1
                _log.warning("a source failed", source=source.name, error=str(error), again_in_s=backoff)
                await self._clock.sleep(backoff)
                backoff = min(_LAST_BACKOFF_S, 2 * backoff)
            else:
                self.finished.add(source.name)
                _log.info("a source has ended", source=source.name)
                return

    async def run(self) -> None:
        """Cut, judge, store; commit now and then."""
        await self._has_task.wait()
        self._committed = self._clock.now()
        try:
            while True:
                await self._wait()
                work = self.workspace
                if work is not None:
                    await self._step(work)
                    await self._commit_if_due(work)
        finally:
            if self.workspace is not None:
                self.workspace.store.close()

    async def _wait(self) -> None:
        """Until samples came, or until what is late or uncommitted may be due."""
        pause = min(self._settings.windows.lateness_s / 2, self._settings.store.commit_every_s)
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _step(self, work: Workspace) -> None:
        while (windows := work.windower.poll(self._clock.now())) is not None:
            quality = work.meter.judge(windows)
            work.recent.extend(quality.found_BMR)
            work.store.add(as_window_set(windows, quality))
            self._progress.tick()
            self._listener(Judged(work.task, windows, quality, self._clock.now()))
            await self._commit_if_due(work)
            await asyncio.sleep(0)

    async def _commit_if_due(self, work: Workspace) -> None:
        due = self._clock.now() - self._committed >= self._settings.store.commit_every_s
        if work.store.pending and (due or work.store.is_due):
            self._committed = self._clock.now()
            await asyncio.to_thread(work.store.commit)


def _remove(store: Store) -> None:
    for suffix in ("", "-wal", "-shm"):
        store.path.with_name(store.path.name + suffix).unlink(missing_ok=True)
