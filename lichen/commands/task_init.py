"""A first task from recordings, with their modalities, channels, rates and classes.

Shapes: n samples, C channels, k changes of a label.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from models.data.labels.labels import TargetTrack
from models.data.streams.recording import Recording, Stream, read
from models.data.streams.stream_findings import rate_of
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Window

_NEAR_WHOLE: Final = 0.02
"""A rate within this share of a whole number is rounded to it: clocks of sensors are no better."""
_MAX_CLASSES: Final = 32
"""A further target with more different whole numbers is a number, not a class."""
_MOST_LABELS: Final = 1024
"""Of a task (``protocol.tasks.task``)."""
_FAR: Final = 2.0
"""Values with a mean of more standard deviations from 0 get an offset."""
_SAMPLES: Final = 128
"""Samples of a window, of the fastest modality, if a window of the default length has fewer than two."""
_LONGEST_S: Final = 3600.0
"""Bounds of ``window.length_s``."""
_UNITS: Final = (
    ("acc", "m/s2"),
    ("grav", "m/s2"),
    ("gyr", "rad/s"),
    ("mag", "uT"),
    ("temp", "degC"),
    ("pres", "hPa"),
)
"""Parts of usual names of modalities, and the unit of the example."""
_SHORT: Final = 2.0
"""If activities are shorter than so many windows, another label rule is better."""


@dataclass
class Sensor:
    """A modality in recordings: for each recording its channels, rate, mean and standard deviation."""

    channels: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)

    def add(self, stream: Stream) -> None:
        """Add one more recording of it."""
        self.channels.append(stream.values.shape[1])
        if (rate := rate_of(stream)) is not None:
            self.rates.append(rate)
        values = stream.values[np.isfinite(stream.values).all(axis=1)].astype(np.float64)
        if len(values):
            self.means.append(float(values.mean()))
            self.spreads.append(float(values.std(axis=0).mean()))

    @property
    def rate_hz(self) -> float:
        """The median over recordings, rounded to a whole number if it is near one."""
        rate = float(np.median(self.rates)) if self.rates else 50.0
        whole = round(rate)
        return float(whole) if whole and abs(rate - whole) <= _NEAR_WHOLE * rate else float(f"{rate:.4g}")


@dataclass
class LabelledStreams:
    """A target in recordings: the names or the numbers that occur."""

    names: dict[str, None] = field(default_factory=dict)
    numbers: set[float] = field(default_factory=set)

    @property
    def is_number(self) -> bool:
        """Whether it is a regression."""
        odd = any(value != round(value) or value < 0 for value in self.numbers)
        return not self.names and (odd or len(self.numbers) > _MAX_CLASSES)

    def classes(self, prefix: str) -> tuple[str, ...]:
        """The names, or one for each index up to the largest.

        Raises:
            Misconfigured: a number is no index of a class that a task could have.
        """
        if self.names:
            return tuple(self.names)
        largest = int(max((value for value in self.numbers if value >= 0), default=-1))
        if largest >= _MOST_LABELS:
            raise Misconfigured(
                f"recordings have the label {largest}: classes count from 0, and a task has at most "
                f"{_MOST_LABELS}; are these classes?"
            )
        return tuple(f"{prefix}{index}" for index in range(largest + 1))


@dataclass
class FoundStreams:
    """The combined content of recordings."""

    sensors: dict[str, Sensor] = field(default_factory=dict)
    targets: dict[str, LabelledStreams] = field(default_factory=dict)
    activities_s: list[float] = field(default_factory=list)
    """Duration of each stretch of one class."""

    def add(self, recording: Recording) -> None:
        """Add one more recording."""
        for name, stream in recording.streams.items():
            self.sensors.setdefault(name, Sensor()).add(stream)
        label = TargetTrack(recording.label_t, recording.label.astype(np.float64))
        tracks: Mapping[str, TargetTrack] = {LABEL: label, **recording.targets}
        for name, track in tracks.items():
            if len(track.t):
                one, names = self.targets.setdefault(name, LabelledStreams()), recording.names.get(name, ())
                one.names |= dict.fromkeys(names)
                given = track.values[np.isfinite(track.values) & (track.values != -1)]
                one.numbers |= set() if names else set(given.tolist())
        ends = np.append(label.t[1:], recording.span()[1])
        self.activities_s += (ends - label.t)[label.values >= 0].tolist()


def look(files: Iterable[Path]) -> FoundStreams:
    """The content of these files.

    Raises:
        Misconfigured: one cannot be read, or none has a modality.
    """
    found = FoundStreams()
    for file in files:
        found.add(read(file))
    if not found.sensors:
        raise Misconfigured("no recording has a modality")
    return found


def text(found: FoundStreams, name: str, method: str) -> str:
    """``task.toml``, with comments at values to check.

    Args:
        found: in the recordings.
        name: of the task.
        method: of the task.

    Raises:
        Misconfigured: a label is no index of a class.
    """
    return "\n".join([*_head(found, name, method), *_modalities(found), *_window(found), *_rest(found), ""])


def _head(found: FoundStreams, name: str, method: str) -> Iterator[str]:
    yield "# Made from recordings by lichen task init. docs/task.md explains every key;"
    yield "# lichen task check says what is wrong here, lichen data check whether recordings fit."
    yield f"name = {json.dumps(name)}"
    yield f"method = {json.dumps(method)}"
    labelled = found.targets.get(LABEL, LabelledStreams())
    classes = labelled.classes("class_")
    if len(classes) < 2:  # noqa: PLR2004 - a class alone needs no classifier
        yield "# Fewer than two classes were found in the recordings: write yours."
        classes = (*classes, *("class_0", "class_1")[len(classes) :])
    elif not labelled.names:
        yield "# Recordings count classes from 0 and do not name them: write their names, in that order."
        if 0.0 not in labelled.numbers:
            yield "# Nothing is of class_0: do the recordings count from 1? Subtract 1 there."
    if labelled.names and labelled.numbers:
        yield "# Some recordings count classes, others name them: the order here is that of indices."
    yield f"labels = {_list(classes)}"


def _unit(name: str) -> str:
    """The likely unit of a modality with this name: an example in a comment, nothing is converted."""
    words = name.lower()
    return next((unit for part, unit in _UNITS if part in words), "1")


def _modalities(found: FoundStreams) -> Iterator[str]:
    for name, sensor in sorted(found.sensors.items()):
        channels, counts = Counter(sensor.channels).most_common(1)[0][0], sorted({*sensor.channels})
        yield from ("", "[[modalities]]", f"name = {json.dumps(name)}")
        if len(counts) > 1:
            yield f"# Recordings have {' and '.join(map(str, counts))} channels of it; all must have so many."
        yield f"channels = {channels}"
        if sensor.rates and max(sensor.rates) > 1.5 * min(sensor.rates):
            yield f"# From {min(sensor.rates):.4g} to {max(sensor.rates):.4g} Hz in the recordings."
        if sensor.rate_hz * Window().length_s < 1:
            yield f"# Under one sample in {Window().length_s} s: are the recordings' times seconds?"
        yield f"rate_hz = {sensor.rate_hz:g}"
        yield f'# unit = "{_unit(name)}"   # of the values; low and high bound what the sensor can read'
        yield "# The network sees (value - offset) / scale: about 1 is right."
        if sensor.means:
            mean, spread = float(np.median(sensor.means)), float(np.median(sensor.spreads))
            if abs(mean) > _FAR * spread:
                yield f"offset = {float(f'{mean:.2g}')}"
            yield f"scale = {max(float(f'{spread:.2g}'), 1e-6)}"


def _window(found: FoundStreams) -> Iterator[str]:
    window = Window()
    length_s, stride_s = window.length_s, window.stride_s
    fastest = max(sensor.rate_hz for sensor in found.sensors.values())
    yield from ("", "[window]")
    if fastest * length_s < 2:  # noqa: PLR2004 - one sample is no window
        length_s = min(_SAMPLES / fastest, _LONGEST_S)
        stride_s = length_s / 2
        yield f"# {length_s * fastest:.3g} samples of the fastest modality."
    held = float(np.median(found.activities_s)) if found.activities_s else np.inf
    if held < _SHORT * length_s:
        yield f"# Half of the activities last under {held:.3g} s: a window may hold several of them."
        yield 'label_rule = "majority"'
    yield f"length_s = {length_s:g}"
    yield f"stride_s = {stride_s:g}"


def _rest(found: FoundStreams) -> Iterator[str]:
    for name, labelled in sorted(found.targets.items()):
        if name == LABEL:
            continue
        yield from (
            "",
            "# For methods that predict several things.",
            "[[targets]]",
            f"name = {json.dumps(name)}",
        )
        if labelled.is_number:
            numbers = np.array(sorted(labelled.numbers))
            yield from ('kind = "regression"', f"offset = {float(f'{numbers.mean():.2g}')}")
            yield f"scale = {max(float(f'{numbers.std():.2g}'), 1e-6)}"
        else:
            yield f"labels = {_list(labelled.classes(name + '_'))}"
    yield from (
        "",
        "[rounds]",
        "count = 20",
        "min_windows = 32   # labelled ones, before a device takes part",
    )


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(json.dumps(word, ensure_ascii=False) for word in words) + "]"
