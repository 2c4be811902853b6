"""The content of recordings, as a first task needs it: modalities, targets, activities.

Shapes: n samples, C channels, k changes of a label.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from lichen.data_import.output import forms
from lichen.data_import.output.forms import Form, RecordingForms
from models.data.labels.labels import TargetTrack
from models.data.streams.recording import Recording, Stream, read
from models.data.streams.stream_findings import rate_of
from protocol.errors import Misconfigured
from protocol.tasks.kinds import KINDS, ModalityKind
from protocol.tasks.task import LABEL

_NEAR_WHOLE: Final = 0.02
"""A rate within this share of a whole number is rounded to it: clocks of sensors are no better."""
_MAX_CLASSES: Final = 32
"""A further target with more different whole numbers is a number, not a class."""
_MOST_LABELS: Final = 1024
"""Of a task (``protocol.tasks.task``)."""
_SOUND_HZ: Final = 4000.0
"""Fast samples of few channels are taken for sound."""
_MOST_VALUES: Final = 1_000_000
"""Of a recording's stream, the mean and spread of about so many values are computed."""


@dataclass
class Sensor:
    """A modality in recordings: for each recording its values in a sample, rate, mean and standard deviation.

    ``form``: its kind, and the size of images, if a recording says it.
    """

    channels: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    form: Form | None = None

    def add(self, stream: Stream, form: Form | None) -> None:
        """Add one more recording of it."""
        self.form = form or self.form
        self.channels.append(stream.values.shape[1])
        if (rate := rate_of(stream)) is not None:
            self.rates.append(rate)
        values = stream.values[:: max(1, stream.values.size // _MOST_VALUES)].astype(np.float64)
        values = values[np.isfinite(values).all(axis=1)]
        if values.size:  # texts have no numbers
            self.means.append(float(values.mean()))
            self.spreads.append(float(values.std(axis=0).mean()))

    @property
    def kind(self) -> ModalityKind:
        """As the recordings say it; else sound, if it is fast."""
        if self.form is not None:
            return self.form.kind
        most = KINDS["sound"].most_channels
        return "sound" if self.rate_hz >= _SOUND_HZ and max(self.channels) <= most else "stream"

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
    example_s: float | None = None
    """Duration of an example; None: recordings are no series of examples."""

    def add(self, recording: Recording, forms: RecordingForms) -> None:
        """Add one more recording."""
        self.example_s = forms.example_s or self.example_s
        for name, stream in recording.streams.items():
            form = forms.modalities.get(name) or _form_of(stream)
            self.sensors.setdefault(name, Sensor()).add(stream, form)
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


def _form_of(stream: Stream) -> Form | None:
    """The form of images whose size is known, and of texts; None: numbers."""
    if stream.texts:
        return Form("text")
    if len(stream.size) == 3:  # noqa: PLR2004 - channels, height, width
        channels, height, width = stream.size
        return Form("image", (channels, height, width))
    return None


def look(files: Iterable[Path]) -> FoundStreams:
    """The content of these files.

    Raises:
        Misconfigured: one cannot be read, or none has a modality.
    """
    found = FoundStreams()
    for file in files:
        found.add(read(file), forms.read(file))
    if not found.sensors:
        raise Misconfigured("no recording has a modality")
    return found
