"""One reader of a sensor for all tasks of a device: its batches go to each task that collects.

A sensor is opened once. A source that turns its samples into what a task says (classes of labels, buckets of
texts) and takes several readers, as a recording or a broker does, is opened for each task instead.

Queue: at most ``MAX_BATCHES`` and ``MAX_BYTES`` a task and source; if it is full the oldest are dropped, and
counted with the source.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from edge_agent.sources.base import (
    ChecksTask,
    FollowsTask,
    ReportsStatus,
    SizedByTask,
    Source,
    channels_in,
)
from models.data.streams.batches import Batch, SampleBatch
from protocol.tasks.task import Task

MAX_BATCHES: Final = 4096
"""Tasks take batches as they come; so many wait only if one has ended in an error."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Of samples and their times. A frame of 1280 x 720 pixels has 11 MB in float32: it waits alone."""


def takes_one_reader(source: Source) -> bool:
    """Whether tasks share a source: it is a sensor, or does not depend on the task."""
    return bool(getattr(source, "one_reader", not isinstance(source, FollowsTask)))


class SharedSource:
    """A source with one reader.

    Args:
        source: opened.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.dropped = 0
        self._taps: list[SourceTap] = []
        self._waiting: dict[SourceTap, _Waiting] = {}
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        """Held while the reader starts and ends: hardware is not opened before it is closed."""

    def tap(self) -> "SourceTap":
        """The source for one more task."""
        tap = SourceTap(self)
        self._taps.append(tap)
        return tap

    def remove(self, tap: "SourceTap") -> None:
        """A task has ended."""
        self._taps = [one for one in self._taps if one is not tap]

    def conflict(self, tap: "SourceTap", task: Task) -> str:
        """Another task that wants samples of another form; empty: none."""
        wanted = _form(self.source, task)
        for other in self._taps:
            theirs = None if other is tap or other.task is None else _form(self.source, other.task)
            if other.task is not None and wanted and theirs and theirs != wanted:
                return other.task.name
        return ""

    def follow(self, tap: "SourceTap", task: Task) -> None:
        """Read for this task, too, unless it does not use the sensor, or wants another form of samples."""
        source, alone = self.source, all(one is tap or one.task is None for one in self._taps)
        if isinstance(source, FollowsTask) and (
            alone or (_form(source, task) and not self.conflict(tap, task))
        ):
            source.follow(task)

    async def samples(self, tap: "SourceTap") -> AsyncGenerator[Batch, None]:
        """The batches from now on; the first task to read starts the reader, the last one ends it.

        Raises:
            OSError, Transient: of the source; every task gets it, and the first to call again starts anew.
        """
        mine = self._waiting[tap] = _Waiting()
        try:
            async with self._opening:
                if self._reader is None or self._reader.done():
                    self._reader = asyncio.create_task(self._read())
            while True:
                while mine.batches:
                    yield mine.take()
                if mine.ended:
                    if mine.error is not None:
                        raise mine.error
                    return
                await mine.news.wait()
                mine.news.clear()
        finally:
            if self._waiting.get(tap) is mine:
                del self._waiting[tap]
            async with self._opening:
                if not self._waiting and self._reader is not None:
                    self._reader.cancel()
                    await asyncio.wait([self._reader])
                    self._reader = None

    async def _read(self) -> None:
        error: Exception | None = None
        try:
            stream: Any = self.source.samples()
            async with aclosing(stream):
                async for batch in stream:
                    for waiting in self._waiting.values():
                        self.dropped += waiting.put(batch)
        except Exception as failed:  # noqa: BLE001 - raised again by every task
            error = failed
        for waiting in self._waiting.values():
            waiting.end(error)


class _Waiting:
    """The batches that one task has not taken yet."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self._bytes = 0
        self.news = asyncio.Event()
        self.ended = False
        self.error: Exception | None = None

    def put(self, batch: Batch) -> int:
        """Queue a batch; returns how many were dropped for it."""
        before = len(self.batches)
        while self.batches and (len(self.batches) >= MAX_BATCHES or self._bytes + _size(batch) > MAX_BYTES):
            self.take()
        dropped = before - len(self.batches)
        self.batches.append(batch)
        self._bytes += _size(batch)
        self.news.set()
        return dropped

    def take(self) -> Batch:
        """The oldest batch, which waits no more."""
        batch = self.batches.popleft()
        self._bytes -= _size(batch)
        return batch

    def end(self, error: Exception | None) -> None:
        """Nothing more comes."""
        self.ended = True
        self.error = error
        self.news.set()


def _size(batch: Batch) -> int:
    return batch.t.nbytes + (batch.values if isinstance(batch, SampleBatch) else batch.label).nbytes


def _form(source: Source, task: Task) -> tuple[object, ...]:
    """What a task wants of a source that is sized by the task; empty: it does not use it."""
    used = [task.modality(name) for name in source.channels if name in task.modality_names]
    if not used or not isinstance(source, SizedByTask):
        return ("any",) if used else ()
    return tuple((m.name, m.kind, m.channels, m.height, m.width, m.rate_hz) for m in used)


class SourceTap:
    """A shared source as one task sees it.

    Args:
        shared: the source.
    """

    def __init__(self, shared: SharedSource) -> None:
        self._shared = shared
        self.task: Task | None = None
        self.name = shared.source.name

    @property
    def channels(self) -> dict[str, int]:
        """See :class:`edge_agent.sources.base.Source`."""
        return self._shared.source.channels

    @property
    def state(self) -> str:
        """See :class:`edge_agent.sources.base.ReportsStatus`."""
        source = self._shared.source
        return source.state if isinstance(source, ReportsStatus) else "shared by the tasks of this device"

    @property
    def counters(self) -> Mapping[str, float]:
        """See :class:`edge_agent.sources.base.ReportsStatus`; of all tasks."""
        source = self._shared.source
        own = dict(source.counters) if isinstance(source, ReportsStatus) else {}
        return own | ({"dropped_batches": self._shared.dropped} if self._shared.dropped else {})

    def doubts(self, task: Task) -> list[str]:
        """See :class:`edge_agent.sources.base.ChecksTask`; also a task that wants it in another form."""
        source = self._shared.source
        words = source.doubts(task) if isinstance(source, ChecksTask) else []
        if other := self._shared.conflict(self, task):
            conflict = (
                f"{self.name}: task {other!r} of this device reads it in another size or rate, and a "
                "sensor is opened once: give both tasks the same"
            )
            return [*words, conflict]
        return words

    def follow(self, task: Task) -> None:
        """See :class:`edge_agent.sources.base.FollowsTask`."""
        self.task = task
        self._shared.follow(self, task)

    def channels_in(self, task: Task) -> dict[str, int]:
        """See :class:`edge_agent.sources.base.SizedByTask`; nothing that another task wants differently."""
        if self._shared.conflict(self, task):
            return {}
        return channels_in(self._shared.source, task)

    def leave(self) -> None:
        """The task has ended; its wishes count no more."""
        self.task = None

    def release(self) -> None:
        """The task's parts were closed."""
        self.leave()
        self._shared.remove(self)

    def samples(self) -> AsyncGenerator[Batch, None]:
        """See :class:`edge_agent.sources.base.Source`."""
        return self._shared.samples(self)


class DeviceSources:
    """The sources of a device with several tasks.

    Args:
        sources: opened, one for each table of the configuration.
    """

    def __init__(self, sources: list[Source]) -> None:
        self._shared = [SharedSource(one) if takes_one_reader(one) else None for one in sources]
        self._own = sources

    def of_main(self) -> list[Source]:
        """For the main task."""
        pairs = zip(self._shared, self._own, strict=True)
        return [own if shared is None else shared.tap() for shared, own in pairs]

    def of_further(self, opened: Callable[[int], Source]) -> list[Source]:
        """For a further task.

        Args:
            opened: opens the source of a table again, by its number. Raises Misconfigured.
        """
        return [opened(i) if one is None else one.tap() for i, one in enumerate(self._shared)]
