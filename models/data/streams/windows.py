"""Streams -> aligned windows with availability masks. Pure: time is an argument.

Window k spans [k * stride, k * stride + length) of stream time. A modality's values are interpolated linearly
onto its grid, between neighbours that are at most ``max_gap_s`` apart (1.5 periods if the sensor is slower
than that); other grid points are *not covered* and hold the nearest value. Samples of sound are taken as they
came where they lie near the grid. A modality is present in a window
if ``min_coverage`` of its points are covered, else it is masked and its values are zero. Of images, vectors
and texts a window holds the newest frame in it, as it came; it is present if there is one.

A window closes when every modality that still delivers has passed its end. A modality that has delivered
nothing for ``lateness_s`` of real time is not awaited: a dead sensor gives masks and blocks nothing.

If the task stores contexts (``window.context_s``), the same grid continues into the past of each window, as
far as samples without a gap are stored. A context delays no window.

Shapes: B windows, M task modalities, C channels, T grid points of a window, L of its context.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import Context
from models.data.labels.rules import Labels
from models.data.labels.targets import keys_of
from models.data.streams import context as contexts
from models.data.streams.batches import Batch, LabelBatch, SampleBatch
from models.data.streams.grid import before_s, values_at
from models.data.streams.tracks.frames import FrameTrack
from models.data.streams.tracks.kinds import track_of
from models.data.streams.tracks.track import ABSURD, Track
from protocol.tasks.task import LABEL, Task

MAX_WINDOWS: Final = 256
"""Limit of windows of one call."""
MAX_VALUES: Final = 1 << 24
"""Limit of values with their contexts of one call (64 MB), or one window."""
MAX_STRANGE: Final = 64
"""Limit of targets, unknown to the task, whose label in force is stored."""
_PERIODS: Final = 1.5
"""After the last sample of a stream, a grid point is covered for less than this many periods."""
_FOREVER_S: Final = 1e11
"""Three thousand years: float64 still resolves microseconds; a time beyond it comes from a broken clock."""


@dataclass(frozen=True)
class Windows:
    """Closed windows, oldest first.

    Attributes:
        start_B: start in stream seconds.
        x: per modality of the task ``x_BCT`` float32, zeros where missing.
        covered: per modality ``covered_BT`` bool.
        present_BM: bool, columns in the task's order.
        y_B: class index of ``label`` by the task's ``label_rule``, -1 if it gives none.
        targets: by further target that takes labels, ``y_B`` float32: the class index or the number by the
            same rule; NaN if it gives none.
        context: the stretches that end with the windows; None if the task stores windows only.
    """

    start_B: NDArray[np.float64]
    x: dict[str, NDArray[np.float32]]
    covered: dict[str, NDArray[np.bool_]]
    present_BM: NDArray[np.bool_]
    y_B: NDArray[np.int64]
    targets: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    context: Context | None = None

    def __len__(self) -> int:
        return len(self.start_B)


@dataclass
class WindowCounters:
    """Samples that reached no window; the last two counters are of other things."""

    late: int = 0
    not_finite: int = 0
    """Or absurdly large, like uninitialised memory."""
    ignored: int = 0
    """Samples with a modality, channels or size that the task lacks; or labels of such a target."""
    clock_steps: int = 0
    empty_windows: int = 0


@dataclass
class Windower:
    """Feed batches, poll windows.

    Args:
        task: the grid.
        modalities: those that this device has; others are never awaited.
        lateness_s: real seconds after which a silent modality is no longer awaited.
        max_skew_s: stream seconds that one modality may run ahead of another (large frames: less).
        step_s: a batch this far behind its own stream means that the clock was set back: a new epoch begins.
    """

    task: Task
    modalities: Iterable[str] = ()
    lateness_s: float = 2.0
    max_skew_s: float = 60.0
    step_s: float = 5.0
    counters: WindowCounters = field(default_factory=WindowCounters)

    def __post_init__(self) -> None:
        self._tracks, self._labels = self._new_tracks(), self._new_labels()
        self._strange: dict[str, LabelBatch] = {}
        self._next: int | None = None
        self._closed_any = False
        self._began: float | None = None
        self._rescued: list[Windows] = []

    def _new_tracks(self) -> dict[str, Track | FrameTrack]:
        names = tuple(self.modalities) or self.task.modality_names
        return {name: track_of(self.task.modality(name), self.task.window) for name in names}

    def _new_labels(self) -> dict[str, Labels]:
        takes = (target for target in self.task.objectives if target.kind != "generation")
        return {target.name: Labels(len(target.labels), self.task.window) for target in takes}

    def differs(self, task: Task, modalities: Iterable[str]) -> bool:
        """Whether a task of the same grid, with these modalities, differs from the current one."""
        same = (keys_of(self.task), self.task.window) == (keys_of(task), task.window)
        return not same or {*self._tracks} != {*modalities}

    def use(self, task: Task, modalities: Iterable[str]) -> None:
        """Continue with a task of the same grid: no sample and no label of what both have is lost."""
        same = dict(keys_of(self.task).items() & keys_of(task).items())
        kept = {name: self._labels[name] for name in (LABEL, *same.values())}
        tracks = self._tracks
        self.task, self.modalities = task, tuple(modalities)
        self._tracks, self._labels = self._new_tracks(), self._new_labels() | kept
        self._tracks |= {name: track for name, track in tracks.items() if name in self._tracks}
        for name in self._labels.keys() & self._strange.keys():
            self._labels[name].add(self._strange.pop(name))

    def feed(self, batch: Batch, now: float) -> None:
        """Add a batch that arrived at ``now`` (monotonic seconds)."""
        if isinstance(batch, LabelBatch):
            self._feed_labels(batch)
            return
        track = self._tracks.get(batch.modality)
        if track is None or batch.values.ndim != 2 or batch.values.shape[1] != track.columns:  # noqa: PLR2004 - (n, V)
            self.counters.ignored += len(batch.t)
            return
        t, values = self._finite(batch)
        if not len(t):
            return
        newest = float(t.max())
        if newest < track.mark - self.step_s:
            self._new_epoch()
        self._anchor(float(t.min()))
        floor = self._closed_end() - track.gap_s
        if t.min() < floor:
            kept = t >= floor
            self.counters.late += int((~kept).sum())
            t, values = t[kept], values[kept]
        self._began = now if self._began is None else self._began
        track.add(t, values, newest, now)

    def _feed_labels(self, batch: LabelBatch) -> None:
        labels = self._labels.get(batch.target)
        if labels is None:
            self.counters.ignored += len(batch.t)
            self._remember(batch)
            return
        if len(batch.t) and batch.t[-1] < labels.mark - self.step_s:
            self._new_epoch()
        labels.add(batch)

    def _remember(self, batch: LabelBatch) -> None:
        """Store the label in force of a target that the task lacks: a later task may have the target."""
        if len(batch.t) and (batch.target in self._strange or len(self._strange) < MAX_STRANGE):
            newest = int(batch.t.argmax())
            part = slice(newest, newest + 1)
            self._strange[batch.target] = LabelBatch(batch.t[part], batch.label[part], batch.target)

    def poll(self, now: float) -> Windows | None:
        """Windows that can close at ``now``: at most :data:`MAX_WINDOWS`; None if there are none."""
        if self._rescued:
            return self._rescued.pop(0)
        if self._next is None:
            return None
        began = now if self._began is None else self._began
        head = max(track.reach for track in self._tracks.values())
        awaited = [t.reach for t in self._tracks.values() if t.is_awaited(now, began, self.lateness_s)]
        frames = (t.patience_s for t in self._tracks.values() if isinstance(t, FrameTrack))
        skew_s = min([self.max_skew_s, *frames])
        return self._close_until(max(min(awaited, default=head), head - skew_s))

    def flush(self) -> Windows | None:
        """Close the remaining windows at the end of a stream, also partly covered ones. Call until None."""
        if self._rescued:
            return self._rescued.pop(0)
        return self._flush_open()

    def _finite(self, batch: SampleBatch) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        good = (np.abs(batch.t) < _FOREVER_S) & (np.abs(batch.values) < ABSURD).all(axis=1)  # NaN is neither
        if good.all():
            return batch.t, batch.values
        self.counters.not_finite += int((~good).sum())
        return batch.t[good], batch.values[good]

    def _anchor(self, t: float) -> None:
        """The first window of an epoch: as early as the earliest sample, until a window is closed."""
        index = int(np.floor(t / self.task.window.stride_s + 1e-9))
        if self._next is None or (not self._closed_any and index < self._next):
            self._next = index

    def _start(self) -> float:
        return (self._next or 0) * self.task.window.stride_s

    def _closed_end(self) -> float:
        """Earlier samples are late; those between two windows that do not touch are not."""
        window = self.task.window
        return self._start() + min(0.0, window.length_s - window.stride_s)

    def _new_epoch(self) -> None:
        """The clock was set back: close what is open, drop the rest, and start again at the next sample."""
        self.counters.clock_steps += 1
        while (windows := self._flush_open()) is not None:
            self._rescued.append(windows)
        for track in self._tracks.values():
            track.clear()
        for labels in self._labels.values():
            labels.clear()
        self._strange.clear()
        self._next, self._closed_any, self._began = None, False, None

    def _flush_open(self) -> Windows | None:
        if self._next is None:
            return None
        tracks, length_s = self._tracks.values(), self.task.window.length_s
        head = max(track.reach for track in tracks)
        heard = [track for track in tracks if np.isfinite(track.mark)]
        if len({isinstance(track, Track) for track in heard}) > 1:
            # an image may be in a window that has hardly begun, in which streams cannot be present
            end = max(track.mark + _PERIODS * track.period_s for track in heard if isinstance(track, Track))
            head = max(end, *(track.mark for track in heard)) - self.task.window.min_coverage * length_s
        return self._close_until(head + length_s)

    def _close_until(self, limit: float) -> Windows | None:
        """Close windows that end by ``limit`` (stream seconds); skip those in which nothing is present."""
        window = self.task.window
        while self._next is not None and np.isfinite(limit):  # infinite: no sample of these modalities yet
            last = int(np.floor((limit - window.length_s) / window.stride_s + 1e-6))
            if last < self._next:
                return None
            index = self._with_samples(self._next, last)
            windows = self._cut(index.astype(np.float64) * window.stride_s)
            after = last + 1 if len(index) < self._at_once else int(index[-1]) + 1
            self.counters.empty_windows += after - self._next - len(windows)
            self._next, self._closed_any = after, True
            for name, track in self._tracks.items():
                track.forget(self._start() - before_s(self.task, name))
            for labels in self._labels.values():
                labels.forget(self._start())
            if len(windows):
                return windows
        return None

    def _with_samples(self, first: int, last: int) -> NDArray[np.int64]:
        """Indices in [first, last] of windows with a sample, limited in number: long gaps cost nothing."""
        if last - first < self._at_once:
            return np.arange(first, last + 1)
        stride, most = self.task.window.stride_s, self._at_once
        back = int(np.ceil(self.task.window.length_s / stride))
        tracks = self._tracks.values()
        found = [_starts(track.times(), first - 1, stride, most + back + 1) for track in tracks]
        starts = np.unique(np.concatenate(found))
        index = np.unique((starts[:, None] - np.arange(back + 1)).ravel())
        return index[(index >= first) & (index <= last)][:most]

    @property
    def _at_once(self) -> int:
        values = sum(m.channels * self.task.context_samples(m.name) for m in self.task.modalities)
        return max(1, min(MAX_WINDOWS, MAX_VALUES // values))

    def _cut(self, start_B: NDArray[np.float64]) -> Windows:
        found = values_at(self.task, self._tracks, start_B)
        targets = {
            name: labels.of(start_B, start_B + self.task.window.length_s).astype(np.float32)
            for name, labels in self._labels.items()
        }
        y_B = np.nan_to_num(targets.pop(LABEL), nan=-1.0).astype(np.int64)
        context = None if self.task.window.context_s is None else found.context
        windows = Windows(start_B, found.x, found.covered, found.present_BM, y_B, targets, context)
        keep_B: NDArray[np.bool_] = np.any(found.present_BM, axis=1)
        return windows if keep_B.all() else select(windows, keep_B)


def _starts(t: NDArray[np.float64], first: int, stride: float, most: int) -> NDArray[np.int64]:
    """Strides from ``first`` on with a sample: at least the first ``most``, not all of a long recording."""
    at, size = int(np.searchsorted(t, first * stride)), 4096
    while True:
        found = np.unique(np.floor(t[at : at + size] / stride).astype(np.int64))
        if len(found) >= most or at + size >= len(t):
            return found
        size *= 4


def select(windows: Windows, keep: NDArray[np.bool_]) -> Windows:
    """Those of the windows."""
    return Windows(
        windows.start_B[keep],
        {name: x_BCT[keep] for name, x_BCT in windows.x.items()},
        {name: covered_BT[keep] for name, covered_BT in windows.covered.items()},
        windows.present_BM[keep],
        windows.y_B[keep],
        {name: y_B[keep] for name, y_B in windows.targets.items()},
        contexts.select(windows.context, keep),
    )
