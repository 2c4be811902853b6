"""Findings in one stream of a recording: its times, its rate, its values, its unit. Pure.

Shapes: n samples, C channels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.data.streams.recorded_stream import Stream, misfit_of
from models.data.streams.tracks.track import ABSURD, Track
from protocol.tasks.task import Modality, Task

ERROR: Final = "error"
WARNING: Final = "warning"
RATE_FACTOR: Final = 1.5
"""A recorded rate that differs by more than this from the task's is doubtful."""
_CLOCKS: Final = {1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
_UNITS: Final = {
    1000.0: "a thousand times",
    9.80665: "9.81 times (g and m/s2)",
    57.29578: "57.3 times (degrees)",
}
_GRAVITY: Final = {"g": 1.0, "m/s2": 9.80665, "m/s^2": 9.80665}
"""By unit, an accelerometer's reading at rest."""
_NEAR: Final = 1.25
"""A quotient this near to a factor counts as that factor."""
_SOME: Final = 0.01
_MOST: Final = 0.5
_AXES: Final = 3
_AT_ONCE: Final = 1 << 20
"""Values of frames that are looked at together."""


@dataclass(frozen=True)
class StreamFinding:
    """One finding.

    Attributes:
        kind: for programs; docs/data-check.md lists them.
        severity: :data:`ERROR` or :data:`WARNING`.
        words: for people.
        modality: its subject; empty: none.
    """

    kind: str
    severity: str
    words: str
    modality: str = ""

    def as_json(self) -> dict[str, str]:
        """As JSON values."""
        return dict(vars(self))


def of_stream(task: Task, name: str, stream: Stream) -> tuple[StreamFinding, ...]:
    """All findings in a stream of that modality of the task."""
    modality = task.modality(name)
    if words := misfit_of(modality, stream):
        return (StreamFinding("channels", ERROR, words, name),)
    if not len(stream.t):
        return (StreamFinding("empty", WARNING, f"modality {name!r} has no sample", name),)
    if stream.texts:
        return tuple(_of_order(modality, stream))
    return (*_of_times(task, modality, stream), *_of_values(modality, stream))


def rate_of(stream: Stream) -> float | None:
    """Samples per recorded second between neighbours, without gaps; None if it cannot be determined."""
    steps = np.diff(stream.t)
    steps = steps[steps > 0]
    return 1 / float(np.median(steps)) if len(steps) else None


def clock_of(modality: Modality, stream: Stream) -> str:
    """The probable unit of its times, if that is not seconds; empty: seconds, or unknown."""
    rate = rate_of(stream)
    for factor, words in _CLOCKS.items():
        if rate is not None and 1 / RATE_FACTOR <= rate * factor / modality.rate_hz <= RATE_FACTOR:
            return words
    return ""


def has_odd_times(task: Task, streams: Mapping[str, Stream]) -> bool:
    """Whether the times of any stream are probably not in seconds."""
    return any(clock_of(task.modality(n), s) for n, s in streams.items() if n in task.modality_names)


def _of_order(modality: Modality, stream: Stream) -> Iterator[StreamFinding]:
    name, total = f"modality {modality.name!r}", len(stream.t)
    if stream.moved:
        words = f"{name}: {stream.moved} of {total} times are before the previous one; they were sorted"
        yield StreamFinding("disorder", WARNING, words, modality.name)
    if twice := int((np.diff(stream.t) == 0).sum()):
        words = f"{name}: {twice} of {total} samples have the time of the one before; the first counts"
        yield StreamFinding("same-times", WARNING, words, modality.name)


def _of_times(task: Task, modality: Modality, stream: Stream) -> Iterator[StreamFinding]:
    yield from _of_order(modality, stream)
    name, rate = f"modality {modality.name!r}", rate_of(stream)
    if rate is None:
        return
    off = f"{name} was recorded at {rate:.4g} Hz, the task's rate_hz is {modality.rate_hz:g}"
    if clock := clock_of(modality, stream):
        words = f"{off}: its times look like {clock}, and a recording's are seconds"
        yield StreamFinding("time-unit", ERROR, words, modality.name)
        return
    if not 1 / RATE_FACTOR <= rate / modality.rate_hz <= RATE_FACTOR:
        yield StreamFinding("rate", WARNING, f"{off}: are its times in seconds?", modality.name)
    yield from _of_gaps(task, modality, stream)


def _of_gaps(task: Task, modality: Modality, stream: Stream) -> Iterator[StreamFinding]:
    steps, key = np.diff(stream.t), "window.max_gap_s"
    most = Track(modality, task.window.max_gap_s).gap_s
    if modality.framed:  # a window needs one of them
        most, key = max(most, task.window.length_s), "window.length_s"
    gaps, span = steps[steps > most], float(stream.t[-1] - stream.t[0])
    if gaps.sum() > _SOME * span:
        words = (
            f"modality {modality.name!r}: {len(gaps)} gaps over {most:g} s ({key}), together "
            f"{gaps.sum():.4g} of {span:.4g} s: no data there"
        )
        yield StreamFinding("gaps", WARNING, words, modality.name)


def _of_values(modality: Modality, stream: Stream) -> Iterator[StreamFinding]:
    name = f"modality {modality.name!r}"
    if modality.framed:
        yield from _of_frames(modality, stream)
        return
    good_n: NDArray[np.bool_] = np.all(np.abs(stream.values) < ABSURD, axis=1)
    if lost := int((~good_n).sum()):
        words = f"{name}: {lost} of {len(good_n)} samples ({lost / len(good_n):.1%}) hold NaN or no number"
        yield StreamFinding(
            "not-a-number", WARNING if good_n.any() else ERROR, f"{words}: each is a gap", modality.name
        )
    values = np.asarray(stream.values[good_n], np.float32)
    if not len(values):
        return
    flat = np.flatnonzero(np.ptp(values, axis=0) == 0)
    if len(flat) and len(values) > 1:
        listed = ", ".join(f"{c} ({values[0, c]:g})" for c in flat)
        words = f"{name}: channel {listed} never changes: is the sensor dead?"
        yield StreamFinding("constant", WARNING, words, modality.name)
    yield from _of_bounds(modality, values)


def _of_frames(modality: Modality, stream: Stream) -> Iterator[StreamFinding]:
    """As :func:`_of_values` of many wide rows, a few at a time."""
    name, total, wide = f"modality {modality.name!r}", len(stream.t), modality.sample_values
    lost, out, alike = 0, 0, True
    low = -np.inf if modality.low is None else modality.low
    high = np.inf if modality.high is None else modality.high
    for begin in range(0, total, max(1, _AT_ONCE // wide)):
        values_nV = np.asarray(stream.values[begin : begin + max(1, _AT_ONCE // wide)], np.float32)
        lost += int((~(np.abs(values_nV) < ABSURD).all(axis=1)).sum())
        out += int(((values_nV < low) | (values_nV > high)).any(axis=1).sum())
        alike = alike and bool((values_nV == stream.values[0]).all())
    if lost:
        words = f"{name}: {lost} of {total} samples ({lost / total:.1%}) hold NaN or no number"
        severity = WARNING if lost < total else ERROR
        yield StreamFinding("not-a-number", severity, f"{words}: none is in a window", modality.name)
    if alike and total > 1:
        words = f"{name}: all {total} samples are equal: is the source dead?"
        yield StreamFinding("constant", WARNING, words, modality.name)
    if out:
        words = f"{name}: {out / total:.1%} of its samples go beyond {low:g} to {high:g} {modality.unit}"
        yield StreamFinding("bounds", WARNING, f"{words} (low, high)", modality.name)


def _of_bounds(modality: Modality, values: NDArray[np.float32]) -> Iterator[StreamFinding]:
    """Values outside the modality's bounds, and those in another unit."""
    name, low = f"modality {modality.name!r}", -np.inf if modality.low is None else modality.low
    high = np.inf if modality.high is None else modality.high
    out = float(((values < low) | (values > high)).any(axis=1).mean())
    if out > 0:
        words = f"{name}: {out:.1%} of its samples go beyond {low:g} to {high:g} {modality.unit} (low, high)"
        factor = _fitting(values, low, high) if out > _MOST else ""
        severity = ERROR if factor else WARNING
        hint = f": they would fit if they were {factor} smaller: another unit?" if factor else ""
        yield StreamFinding("bounds", severity, words + hint, modality.name)
    elif modality.channels == _AXES and modality.unit in _GRAVITY:
        size = float(np.median(np.linalg.norm(values, axis=1))) / _GRAVITY[modality.unit]
        if factor := factor_of(size):
            words = f"{name}: it reads {size:.3g} times gravity, off by {factor}: is it in {modality.unit}?"
            yield StreamFinding("unit", ERROR, words, modality.name)


def _fitting(values: NDArray[np.float32], low: float, high: float) -> str:
    """The factor by which the values are too large, as text; empty if no known factor explains it."""
    for factor, words in _UNITS.items():
        outside = ((values / factor < low) | (values / factor > high)).any(axis=1).mean()
        if outside <= _SOME:
            return words
    return ""


def factor_of(quotient: float) -> str:
    """A known factor between units near the quotient or its inverse, as text; empty: none."""
    for factor, words in _UNITS.items():
        if any(factor / _NEAR <= q <= factor * _NEAR for q in (quotient, 1 / max(quotient, 1e-12))):
            return words
    return ""
