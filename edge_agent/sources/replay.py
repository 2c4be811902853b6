"""The ``replay`` source: a recording as if it came from sensors, at recorded speed or faster."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from edge_agent.sources.base import REGISTRY, SourceKind
from models.data.labels.class_names import of_task
from models.data.streams.batches import Batch, LabelBatch, SampleBatch
from models.data.streams.recorded_stream import columns_of, rows_of
from models.data.streams.recording import Recording, Stream, label_tracks, read
from models.data.streams.recording_findings import of_recording
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Task
from runtime.clock import Clock
from runtime.settings.load import ConfigPath, Section

MIN_BATCH_S: Final = 0.2
MAX_BATCH_S: Final = 1.0
BATCH_SAMPLES: Final = 50
"""A batch covers 0.2 s of real time, or up to 1 s if that is fewer than 50 samples: wake-ups cost CPU."""


class ReplaySettings(Section):
    """Keys of ``[[source]] kind = "replay"``."""

    file: ConfigPath
    speed: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    """Recorded seconds per real second."""
    loop: bool = False
    """Start again at the end; time goes on, so that the windows of the second pass are new ones."""
    loop_gap_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """Recorded seconds without samples between two passes: no window spans the gap."""
    start_s: Annotated[float, Field(ge=0)] = 0.0
    """Skip this much of the recording, in the first pass alone."""
    modalities: dict[str, str] | None = None
    """Task modality -> name in the recording. Empty: the same names."""


class Replay:
    """Plays a recording. Calling :meth:`samples` again continues."""

    def __init__(self, settings: ReplaySettings, known: Sequence[str] | None, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        whole = read(settings.file)
        self.recording = chosen(whole, settings, known)
        none, unmapped = np.empty(0), settings.modalities is None
        self._unused = {n: Stream(none, none[:, None].astype(np.float32)) for n in whole.streams if unmapped}
        """All streams of the file, without samples, if ``modalities`` is not set; for :meth:`doubts`."""
        self._doubts: tuple[Task, tuple[str, ...]] | None = None
        self.name = f"replay {settings.file.name}"
        self.channels = {name: columns_of(None, s) for name, s in self.recording.streams.items()}
        self._modalities: dict[str, Modality] = {}
        self._tracks = label_tracks(self.recording)
        self._first, self._last = self.recording.span()
        self._position = self._first + settings.start_s
        self._offset = 0.0

    def follow(self, task: Task) -> None:
        """Classes that the file names, and the buckets of texts, are the task's from now on."""
        self._tracks = label_tracks(of_task(task, self.recording))
        self._modalities = {m.name: m for m in task.modalities}
        self.channels = self.channels_in(task)

    def channels_in(self, task: Task) -> dict[str, int]:
        """See :class:`edge_agent.sources.base.SizedByTask`: texts have as many buckets as the task says."""
        modalities = {m.name: m for m in task.modalities}
        return {name: columns_of(modalities.get(name), s) for name, s in self.recording.streams.items()}

    @property
    def state(self) -> str:
        """See :class:`edge_agent.sources.base.ReportsStatus`."""
        length = self._last - self._first
        at = min(self._position - self._first, length)
        return f"second {at:.0f} of {length:.0f}" if at < length else f"all {length:.0f} seconds are played"

    @property
    def counters(self) -> dict[str, float]:
        """See :class:`edge_agent.sources.base.ReportsStatus`: a file has no problems of its own."""
        return {}

    def doubts(self, task: Task) -> list[str]:
        """The findings of ``lichen data check`` in the recording; cached for the last task.

        A modality that the recording lacks is left out: another source may deliver it.
        """
        if self._doubts is None or self._doubts[0] != task:
            findings = of_recording(
                task, replace(self.recording, streams={**self._unused, **self.recording.streams})
            )
            words = (
                f"{self.name}: {finding.words}" for finding in findings if finding.kind != "missing-modality"
            )
            self._doubts = task, tuple(words)
        return [*self._doubts[1]]

    def _step_s(self) -> float:
        """Real seconds per batch."""
        rates = [
            len(s.t) / max(1e-9, s.t[-1] - s.t[0]) for s in self.recording.streams.values() if len(s.t) > 1
        ]
        fastest = max(rates, default=1.0) * self._settings.speed
        return float(np.clip(BATCH_SAMPLES / fastest, MIN_BATCH_S, MAX_BATCH_S))

    async def samples(self) -> AsyncIterator[Batch]:
        """Yield the recording; see :class:`edge_agent.sources.base.Source`."""
        step = self._step_s()
        due = self._clock.now()
        while True:
            for label in self._labels_in_force():
                yield label
            while self._position <= self._last:
                until = self._position + step * self._settings.speed
                for batch in self._between(self._position, until):
                    yield batch
                self._position = until
                due += step
                await self._clock.sleep(max(0.0, due - self._clock.now()))
                due = max(due, self._clock.now() - step)  # after a stall: continue at speed, do not catch up
            end = np.array([self._last + self._offset])
            yield LabelBatch(end, np.array([-1], np.int64))
            for name in self.recording.targets:
                yield LabelBatch(end, np.array([np.nan]), name)
            if not self._settings.loop:
                return
            self._offset += self._last - self._first + self._settings.loop_gap_s
            self._position = self._first
            due += self._settings.loop_gap_s / self._settings.speed
            await self._clock.sleep(max(0.0, due - self._clock.now()))

    def _labels_in_force(self) -> Iterator[LabelBatch]:
        """The labels that are active at the start of a pass: they may be older than its first sample."""
        begin = np.array([self._position + self._offset])
        for name, t, label in self._tracks:
            at = int(np.searchsorted(t, self._position)) - 1
            if at >= 0:
                yield LabelBatch(begin, label[at : at + 1], name)

    def _between(self, begin: float, end: float) -> list[Batch]:
        """Batches of [begin, end), labels first, so that windows which close now get theirs."""
        batches: list[Batch] = []
        for name, t, label in self._tracks:
            part = slice(*np.searchsorted(t, (begin, end)))
            if part.stop > part.start:
                batches.append(LabelBatch(t[part] + self._offset, label[part], name))
        for name, stream in self.recording.streams.items():
            part = slice(*np.searchsorted(stream.t, (begin, end)))
            modality = self._modalities.get(name)
            if part.stop > part.start and not (stream.texts and modality is None):
                rows = rows_of(modality, stream, part)
                batches.append(SampleBatch(name, stream.t[part] + self._offset, rows))
        return batches


def chosen(recording: Recording, settings: ReplaySettings, known: Sequence[str] | None) -> Recording:
    """The recording with the task's names.

    Args:
        recording: as on disk.
        settings: may map names.
        known: the task's modality names; None while no task is known.

    Raises:
        Misconfigured: a name is not in the recording or not in the task, or nothing remains.
    """
    have = ", ".join(recording.streams)
    mapping = settings.modalities
    if mapping is None:
        mapping = {name: name for name in recording.streams if known is None or name in known}
        if not mapping:
            raise Misconfigured(
                f"file: {settings.file} has {have}, the task {', '.join(known or ())}: none in common; "
                f"name them under 'modalities' (task modality = name in the recording)"
            )
    for ours, theirs in mapping.items():
        if known is not None and ours not in known:
            raise Misconfigured(
                f"modalities.{ours}: the task has no such modality; it has {', '.join(known)}"
            )
        if theirs not in recording.streams:
            raise Misconfigured(f"modalities.{ours}: {settings.file} has no {theirs!r}; it has {have}")
    streams = {ours: recording.streams[theirs] for ours, theirs in mapping.items()}
    return replace(recording, streams=streams)


REGISTRY.add("replay", SourceKind(ReplaySettings, Replay))
