"""Reads sources for a few seconds and checks their data: rates, jitter, range, gaps, fit to the task."""

import asyncio
import errno
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.sources.base import (
    ChecksTask,
    DescribesMedia,
    FollowsTask,
    ReportsStatus,
    Source,
    source_status,
)
from edge_agent.sources.task_match import source_mismatches
from models.data.streams.batches import Batch, LabelBatch
from protocol.errors import Transient
from protocol.tasks.task import Modality, Task
from runtime.clock import Clock

RATE_FACTOR: Final = 1.5
"""A rate further than this from the task's does not fit."""
MAX_SAMPLES: Final = 1 << 20
"""Of one modality; further samples are only counted."""
MAX_RANGES: Final = 64
"""Channels whose ranges are shown one by one."""
_GAP_PERIODS: Final = 3.0
_PERCENTILE: Final = 95
_SILENCE: Final = 1e-6


@dataclass
class _Stream:
    """Statistics of one modality."""

    t: list[NDArray[np.float64]] = field(default_factory=list)
    samples: int = 0
    not_finite: int = 0
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    sum: float = 0.0
    squares: float = 0.0
    values: int = 0

    def add(self, t: NDArray[np.float64], values: NDArray[np.float32]) -> None:
        good = np.isfinite(values).all(axis=1)
        self.not_finite += int((~good).sum())
        self.samples += len(t)
        if self.samples <= MAX_SAMPLES:
            self.t.append(t[good])
        if good.any():
            # of a frame its lowest and highest value: thousands of ranges tell nobody anything
            wide = values.shape[1] > MAX_RANGES
            rows = values[good].reshape(-1, 1) if wide else values[good]
            low, high = rows.min(axis=0), rows.max(axis=0)
            self.low = low.astype(np.float64) if self.low is None else np.minimum(self.low, low)
            self.high = high.astype(np.float64) if self.high is None else np.maximum(self.high, high)
            exact = values[good].astype(np.float64)
            self.sum += float(exact.sum())
            self.squares += float((exact**2).sum())
            self.values += exact.size

    def told(self, max_gap_s: float | None) -> dict[str, Any]:
        """Statistics: rate from the median step, jitter (95 % of steps differ at most this much), gaps."""
        t = np.sort(np.concatenate(self.t)) if self.t else np.empty(0)
        found: dict[str, Any] = {"samples": self.samples, "not_finite": self.not_finite}
        if self.low is not None and self.high is not None:
            for key, values in (("low", self.low), ("high", self.high)):
                found[key] = [float(f"{value:.6g}") for value in values]
        steps = np.diff(t)
        steps = steps[steps > 0]
        if len(steps):
            middle = float(np.median(steps))
            widest = _GAP_PERIODS * middle if max_gap_s is None else max_gap_s
            found |= {
                "rate_hz": round(1 / middle, 4),
                "jitter_ms": round(1000 * float(np.percentile(np.abs(steps - middle), _PERCENTILE)), 3),
                "gaps": int((steps > widest).sum()),
                "longest_gap_s": round(float(steps.max()), 4),
            }
        return found

    def of_media(self, media: str) -> dict[str, float]:
        """Of images the mean brightness; of sound level and peak in dB of full scale, and the true rate."""
        if not self.values or self.low is None or self.high is None:
            return {}
        if media == "image":
            return {"brightness": round(self.sum / self.values, 1)}
        t = np.concatenate(self.t)
        peak = max(abs(float(self.low.min())), abs(float(self.high.max())), _SILENCE)
        level = max(math.sqrt(self.squares / self.values), _SILENCE)
        found = {"level_db": round(20 * math.log10(level), 1), "peak_db": round(20 * math.log10(peak), 1)}
        span = float(t[-1] - t[0])
        return found | ({"delivered_hz": round((len(t) - 1) / span, 1)} if span > 0 else {})


class SourceCheck:
    """Test of one source.

    Args:
        source: opened.
        task: None: there is none to compare with.
    """

    def __init__(self, source: Source, task: Task | None) -> None:
        self._source = source
        self._task = task
        self._streams: dict[str, _Stream] = {name: _Stream() for name in source.channels}
        self._labels: dict[str, int] = {}
        self._error = ""
        self._ended = False
        if task is not None and isinstance(source, FollowsTask):
            source.follow(task)

    async def listen(self, seconds: float) -> None:
        """Read for this time, or until the source ends or fails."""
        try:
            async with asyncio.timeout(seconds):
                stream: Any = self._source.samples()
                async with aclosing(stream):
                    async for batch in stream:
                        self._add(batch)
        except TimeoutError:
            return
        except (OSError, Transient) as error:
            busy = getattr(error, "errno", None) == errno.EBUSY
            self._error = f"{error}; in use: does the agent run?" if busy else str(error)
        else:
            self._ended = True

    def _add(self, batch: Batch) -> None:
        if isinstance(batch, LabelBatch):
            for value in batch.label:
                key = f"{batch.target}: {value:g}"
                self._labels[key] = self._labels.get(key, 0) + 1
        else:
            self._streams.setdefault(batch.modality, _Stream()).add(batch.t, batch.values)

    def report(self, seconds: float) -> dict[str, Any]:
        """Statistics, failures and mismatches, as JSON values."""
        source, task = self._source, self._task
        found = {name: stream.told(self._max_gap(name)) for name, stream in self._streams.items()}
        if isinstance(source, DescribesMedia):
            for name, stream in self._streams.items():
                found[name] |= {"size": source.size, **stream.of_media(source.media)}
        failed = [self._error] if self._error else []
        state = source.state if isinstance(source, ReportsStatus) else ""
        failed += [
            f"modality {name!r}: nothing came in {seconds:g} s" + (f" ({state})" if state else "")
            for name, stream in self._streams.items()
            if not stream.samples and not self._error
        ]
        wrong = [] if task is None else source_mismatches(task, [source])
        for name, figures in found.items():
            if task is not None and name in task.modality_names:
                wrong += _misfits(task.modality(name), figures)
        doubts = source.doubts(task) if task is not None and isinstance(source, ChecksTask) else []
        return {
            "source": source.name,
            "modalities": found,
            "labels": self._labels,
            "told": source_status(source),
            "ended": self._ended,
            "failed": failed,
            "misfits": wrong,
            "doubts": [words for words in doubts if words not in wrong],
        }

    def _max_gap(self, name: str) -> float | None:
        task = self._task
        if task is None or name not in task.modality_names:
            return None
        return max(task.window.max_gap_s, RATE_FACTOR / task.modality(name).rate_hz)


def _misfits(modality: Modality, found: dict[str, Any]) -> list[str]:
    words = []
    name, rate = modality.name, found.get("delivered_hz", found.get("rate_hz"))
    steady = modality.kind != "text"  # texts come when they come
    if steady and rate is not None and not 1 / RATE_FACTOR <= rate / modality.rate_hz <= RATE_FACTOR:
        words.append(f"modality {name!r}: {rate:g} Hz, the task's rate_hz is {modality.rate_hz:g}")
    low, high = min(found.get("low", [0.0])), max(found.get("high", [0.0]))
    if found.get("low") is None:
        return words
    if modality.low is not None and low < modality.low:
        words.append(f"modality {name!r}: {low:g} {modality.unit}, below the task's low {modality.low:g}")
    if modality.high is not None and high > modality.high:
        words.append(f"modality {name!r}: {high:g} {modality.unit}, above the task's high {modality.high:g}")
    return words


async def check_sources(
    sources: Sequence[Source], task: Task | None, seconds: float, clock: Clock
) -> list[dict[str, Any]]:
    """Test all sources at once; one report each."""
    trials = [SourceCheck(source, task) for source in sources]
    began = clock.now()
    await asyncio.gather(*(trial.listen(seconds) for trial in trials))
    return [trial.report(min(seconds, clock.now() - began)) for trial in trials]
