"""Samples and scored windows for those who look at the device now; nothing is kept while nobody looks."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from edge_agent.windows.live.frame_views import frame_view
from edge_agent.windows.quality.meter import REASONS, ScoredWindows
from models.data.streams.batches import Batch, SampleBatch
from protocol.errors import Reason, Refused
from protocol.tasks.kinds import KINDS
from protocol.tasks.task import Modality, Task

MAX_VIEWERS: Final = 4
MAX_POINTS: Final = 400
"""Of one modality in one message; of more samples every nth is shown."""
MAX_CHANNELS: Final = 8
"""Further channels are not shown."""
_MAX_BATCHES: Final = 256
_MAX_SAMPLES: Final = 20_000
"""Of one modality: what a viewer has not fetched."""
_MAX_WINDOWS: Final = 16
_MAX_MODALITIES: Final = 32
_DIGITS: Final = 6
_MOST_CHANNELS: Final = KINDS["stream"].most_channels
"""Wider samples of no modality of the task are frames, which nobody could read as channels."""


class SignalFeed:
    """What came since the last :meth:`take`, within bounds."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[SampleBatch]] = {}
        self._frames: dict[str, tuple[Modality, SampleBatch]] = {}
        self._windows: deque[dict[str, Any]] = deque(maxlen=_MAX_WINDOWS)

    def feed(self, batch: SampleBatch, modality: Modality | None) -> None:
        """Take samples; ``modality``: of the task, if it has it. Of frames the newest is kept."""
        if modality is not None and modality.framed:
            if len(batch.t) and batch.values.shape[1:] == (modality.sample_values,):
                newest = [int(batch.t.argmax())]  # copied: it holds no batch in memory
                frame = SampleBatch(modality.name, batch.t[newest], batch.values[newest])
                self._frames[modality.name] = modality, frame
            return
        if batch.values.shape[1] > _MOST_CHANNELS:
            return
        if batch.modality not in self._samples and len(self._samples) >= _MAX_MODALITIES:
            return
        waiting = self._samples.setdefault(batch.modality, deque(maxlen=_MAX_BATCHES))
        if waiting and waiting[-1].values.shape[1:] != batch.values.shape[1:]:
            waiting.clear()
        waiting.append(batch)
        while len(waiting) > 1 and sum(len(one.t) for one in waiting) > _MAX_SAMPLES:
            waiting.popleft()

    def judged(self, scored: ScoredWindows) -> None:
        """Take windows with their quality."""
        names, quality, present_BM = scored.task.modality_names, scored.quality, scored.windows.present_BM
        for b in range(max(0, len(scored.windows) - _MAX_WINDOWS), len(scored.windows)):
            self._windows.append(
                {
                    "at": round(float(scored.windows.start_B[b]), 3),
                    "quality": {
                        name: {
                            "score": round(float(quality.quality_BM[b, m]), 3),
                            "reasons": [REASONS[r] for r in np.flatnonzero(quality.found_BMR[b, m])],
                        }
                        for m, name in enumerate(names)
                        if present_BM[b, m]
                    },
                    "missing": [name for m, name in enumerate(names) if not present_BM[b, m]],
                }
            )

    def take(self) -> dict[str, Any]:
        """Samples ``{modality: {"t": [...], "v": [channel][...]}}`` and windows since the last call.

        Of images, vectors and texts the newest, ``{modality: {"at": ..., **frame_view}}``.
        """
        samples = {name: _points(batches) for name, batches in self._samples.items() if batches}
        for name, (modality, frame) in self._frames.items():
            samples[name] = {"at": round(float(frame.t[0]), 4), **frame_view(modality, frame.values[0])}
        self._frames.clear()
        windows = list(self._windows)
        self._samples.clear()
        self._windows.clear()
        return {"samples": samples, "windows": windows}


class LiveSignal:
    """Passes samples and windows to viewers."""

    def __init__(self) -> None:
        self._viewers: list[SignalFeed] = []
        self._modalities: dict[str, Modality] = {}

    def use(self, task: Task) -> None:
        """Samples are of this task from now on."""
        self._modalities = {modality.name: modality for modality in task.modalities}

    def feed(self, batch: Batch) -> None:
        """Samples or labels of a source."""
        if self._viewers and isinstance(batch, SampleBatch):
            for viewer in self._viewers:
                viewer.feed(batch, self._modalities.get(batch.modality))

    def judged(self, scored: ScoredWindows) -> None:
        """Windows with their quality."""
        for viewer in self._viewers:
            viewer.judged(scored)

    @contextmanager
    def viewer(self) -> Iterator[SignalFeed]:
        """Look for a while.

        Raises:
            Refused: too many look already.
        """
        if len(self._viewers) >= MAX_VIEWERS:
            raise Refused(Reason.FULL, f"{MAX_VIEWERS} pages look at this device already: close one")
        one = SignalFeed()
        self._viewers.append(one)
        try:
            yield one
        finally:
            self._viewers.remove(one)


def _points(batches: deque[SampleBatch]) -> dict[str, Any]:
    t = np.concatenate([batch.t for batch in batches])
    values = np.concatenate([batch.values[:, :MAX_CHANNELS] for batch in batches])
    step = -(-len(t) // MAX_POINTS) or 1
    t, values = t[::step], values[::step]
    fine = np.isfinite(t) & np.isfinite(values).all(axis=1)
    return {
        "t": [round(float(one), 4) for one in t[fine]],
        "v": [[float(f"{one:.{_DIGITS}g}") for one in channel] for channel in values[fine].T.tolist()],
    }
