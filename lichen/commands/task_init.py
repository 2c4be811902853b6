"""A first task from recordings, with their modalities, channels, rates and classes.

Shapes: n samples, C channels, k changes of a label.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from lichen.data_import.found_streams import FoundStreams, LabelledStreams, Sensor
from models.registry import method as method_of
from protocol.tasks.kinds import KINDS, ModalityKind
from protocol.tasks.network import Encoder
from protocol.tasks.task import LABEL, Window

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
_BUCKETS: Final = 512
_BYTE: Final = 255.0
"""Largest value of a pixel."""
_AUGMENT: Final[dict[ModalityKind, str]] = {
    "sound": "shift = 0.1, speed = 0.1, gain_db = 10, noise = 0.1, mask = 0.1, bands = 0.2",
    "image": "shift = 0.08, zoom = 0.1, gain_db = 2",
}
"""What suits most tasks of a kind (docs/networks.md)."""
_SHORT: Final = 2.0
"""If activities are shorter than so many windows, another label rule is better."""


def text(found: FoundStreams, name: str, method: str) -> str:
    """``task.toml``, with comments at values to check.

    Args:
        found: in the recordings.
        name: of the task.
        method: of the task.

    Raises:
        Misconfigured: a label is no index of a class.
    """
    return "\n".join(
        [
            *_head(found, name, method),
            *_modalities(found, augments=method_of(method).augments),
            *_window(found),
            *_encoders(found),
            *_rest(found),
            *_steps(method),
            "",
        ]
    )


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


def _modalities(found: FoundStreams, *, augments: bool) -> Iterator[str]:
    for name, sensor in sorted(found.sensors.items()):
        counts = sorted({*sensor.channels})
        yield from ("", "[[modalities]]", f"name = {json.dumps(name)}")
        if sensor.kind != "stream":
            yield f'kind = "{sensor.kind}"'
        if len(counts) > 1:
            yield f"# Recordings have {' and '.join(map(str, counts))} channels of it; all must have so many."
        yield from _size(sensor)
        if sensor.rates and max(sensor.rates) > 1.5 * min(sensor.rates):
            yield f"# From {min(sensor.rates):.4g} to {max(sensor.rates):.4g} Hz in the recordings."
        if sensor.rate_hz * Window().length_s < 1 and found.example_s is None:
            yield f"# Under one sample in {Window().length_s} s: are the recordings' times seconds?"
        yield f"rate_hz = {sensor.rate_hz:g}"
        yield from _range(name, sensor)
        if augments and sensor.kind in _AUGMENT:
            yield "# Random changes while it trains. flip = true mirrors images; remove what changes a class."
            yield f"augment = {{ {_AUGMENT[sensor.kind]} }}"


def _range(name: str, sensor: Sensor) -> Iterator[str]:
    """Unit, offset and scale."""
    if sensor.kind == "image":
        yield from ("# The network sees value / scale: pixels from 0 to 1.", f"scale = {_BYTE:g}")
        return
    if sensor.kind == "stream":
        yield f'# unit = "{_unit(name)}"   # of the values; low and high bound what the sensor can read'
    if sensor.means:
        yield "# The network sees (value - offset) / scale: about 1 is right."
        mean, spread = float(np.median(sensor.means)), float(np.median(sensor.spreads))
        if abs(mean) > _FAR * spread:
            yield f"offset = {float(f'{mean:.2g}')}"
        yield f"scale = {max(float(f'{spread:.2g}'), 1e-6)}"


def _size(sensor: Sensor) -> Iterator[str]:
    """Channels, and the size of images."""
    shape = sensor.form.shape if sensor.form is not None else None
    if sensor.kind == "text":
        yield f"channels = {_BUCKETS}   # n-grams of a text are counted in so many buckets"
        return
    if sensor.kind == "image" and shape is not None:
        yield from (f"channels = {shape[0]}", f"height = {shape[1]}", f"width = {shape[2]}")
    else:
        yield f"channels = {Counter(sensor.channels).most_common(1)[0][0]}"


def _encoders(found: FoundStreams) -> Iterator[str]:
    """The default encoder of each modality, as comments to begin from."""
    yield from ("", "# The network of each modality; these are the defaults.")
    for name, sensor in sorted(found.sensors.items()):
        first, *others = KINDS[sensor.kind].encoders
        more = f"   # or {', '.join(others)}" if others else ""
        yield from (f"# [network.encoders.{name}]", f'# kind = "{first}"{more}')
        yield f"# width = {Encoder().width}"


def _window(found: FoundStreams) -> Iterator[str]:
    window = Window()
    length_s, stride_s = window.length_s, window.stride_s
    fastest = max(sensor.rate_hz for sensor in found.sensors.values())
    yield from ("", "[window]")
    if found.example_s is not None:
        yield f"# Each example takes {found.example_s:g} s in the recordings: a window is one example."
        yield from (f"length_s = {found.example_s:g}", f"stride_s = {found.example_s:g}")
        return
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


def _steps(method: str) -> Iterator[str]:
    """How many steps a device takes in a round, where the method lets a task choose."""
    fields = method_of(method).config.model_fields
    if {"batch", "epochs"} <= fields.keys():
        yield from (
            "",
            "# A device takes windows / batch x epochs steps a round. With a few hundred windows, some",
        )
        yield "# fifty to a hundred steps learn faster than the defaults, for more computation on devices."
        yield from ("# [config]", f"# batch = 16    # default {fields['batch'].default}")
        yield f"# epochs = 4    # default {fields['epochs'].default}"


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(json.dumps(word, ensure_ascii=False) for word in words) + "]"
