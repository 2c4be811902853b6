"""Kinds of modalities: what a window of each holds, which encoders take it, and how it may be augmented.

A window of every kind is ``x_CT`` float32. ``stream``, ``sound``: C channels, T grid points. ``image``: C
channels, T = height x width pixels, row by row, as the camera gives them (0 to 255, unless the source says
otherwise). ``vector``: C values, T = 1. ``text``: counts of its hashed n-grams in C buckets, T = 1. Of the
last three a window holds the newest frame in it.

In front of any kind there may be a *backbone*: a frozen network that makes a vector of each window. What is
learned is then of kind ``vector``, and ``Modality.sensed`` is what the sensor delivers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.base import Digest, Wire

ModalityKind = Literal["stream", "sound", "image", "vector", "text"]
EncoderKind = Literal["cnn1d", "lstm", "tcn", "transformer1d", "mel", "cnn2d", "mlp", "text"]
MAX_BACKBONE_BYTES: Final = 256 * 1024 * 1024
MAX_FEATURES: Final = 4096
"""Values of a backbone's feature."""


NOT_BEHIND_BACKBONES: Final = "window.context_s, input = false, or a target that generates it"
"""In messages: what a modality with a backbone cannot be."""


class Backbone(Wire):
    """A frozen network in front of a modality's encoder, run by ONNX Runtime on the device.

    Its feature is what the encoder gets; it is fetched once, and not trained.
    """

    file: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """An ONNX file, relative to the task file; it is not announced."""
    output: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Its output that is the feature; none: its only output."""
    sha256: Digest | None = None
    """Of the file: another file is refused. None: the coordinator announces that of the file."""
    size: Annotated[int, Field(ge=1, le=MAX_BACKBONE_BYTES)] | None = None
    """Bytes of the file; measured if it is left out."""
    features: Annotated[int, Field(ge=1, le=MAX_FEATURES)] | None = None
    """Values of a feature; measured if it is left out."""

    @property
    def measured(self) -> bool:
        """Whether it says all that a device needs."""
        return None not in {self.sha256, self.size, self.features}


def backbone_trouble(
    backbone: Backbone | None,
    sensed: Backbone | None,
    made: tuple[ModalityKind, int],
    augment: "Augment | None",
) -> str:
    """What does not fit between a modality and its backbone, in words; empty if all does.

    Args:
        backbone: that it names.
        sensed: that makes it, of an announced task.
        made: kind and channels of the modality.
        augment: changes of its windows.
    """
    if backbone is not None and augment is not None:
        return "augment: not with a backbone, which sees each window once"
    if sensed is None:
        return ""
    fits = backbone is None and sensed.measured and made == ("vector", sensed.features)
    return "" if fits else "sensed: written by the coordinator; leave it out"


class Augment(Wire):
    """Random changes of windows while a device trains, drawn anew for each window and epoch; 0: none.

    Predictions, evaluation, quality and prototypes see the windows as they are.
    """

    shift: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """``stream``, ``sound``, ``image``: moved by up to this share of the window's length, or of the image's
    width and height."""
    speed: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """``stream``, ``sound``: faster or slower by up to this share; the pitch of sound goes with it."""
    gain_db: Annotated[float, Field(ge=0, le=40)] = 0.0
    """``stream``, ``sound``, ``image``, ``vector``: louder or softer, brighter or darker by up to so many
    decibels (20 are a factor of ten)."""
    noise: Annotated[float, Field(ge=0, le=10)] = 0.0
    """``stream``, ``sound``, ``image``, ``vector``: white noise of up to this deviation, in units of
    ``scale``; its level is even in the 40 decibels below."""
    mask: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """``stream``, ``sound``: a stretch of up to this share of the window becomes ``offset``; ``image``: a
    rectangle of up to this share of both sides."""
    bands: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """``sound``: the frequencies of a band, of up to this share of the mel scale, are taken out."""
    rotate_deg: Annotated[float, Field(ge=0, le=180)] = 0.0
    """``image``: turned by up to this angle."""
    zoom: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """``image``: larger or smaller by up to this share."""
    flip: bool = False
    """``image``: every second one is mirrored, left to right."""


@dataclass(frozen=True)
class KindRules:
    """The rules of one kind.

    Attributes:
        framed: a window holds one frame, not samples on a grid.
        encoders: that take it; the first is the default.
        most_channels: limit.
        most_hz: limit of ``rate_hz``.
        augments: the keys of ``augment`` that it has.
    """

    framed: bool
    encoders: tuple[EncoderKind, ...]
    most_channels: int
    most_hz: float
    augments: tuple[str, ...] = ()

    def trouble(
        self,
        channels: int,
        rate_hz: float,
        size: tuple[int | None, int | None],
        augment: Augment | None = None,
    ) -> str:
        """What does not fit, in words; empty if all does. ``size``: height and width."""
        if channels > self.most_channels:
            return f"channels: at most {self.most_channels} (found {channels})"
        if rate_hz > self.most_hz:
            return f"rate_hz: at most {self.most_hz:g} (found {rate_hz:g})"
        if "cnn2d" in self.encoders and None in size:
            return "height and width are needed, in pixels"
        if "cnn2d" not in self.encoders and size != (None, None):
            return "height and width are for images; leave them out"
        wrong = [key for key, value in augment or () if value and key not in self.augments]
        known = ", ".join(self.augments) or "none"
        return f"augment.{wrong[0]}: not for this kind (it has {known})" if wrong else ""


_EVERY: Final = ("gain_db", "noise")
_IN_TIME: Final = ("shift", "speed", *_EVERY, "mask")


KINDS: Final[Mapping[ModalityKind, KindRules]] = MappingProxyType(
    {
        "stream": KindRules(
            framed=False,
            encoders=("cnn1d", "lstm", "tcn", "transformer1d"),
            most_channels=64,
            most_hz=20_000,
            augments=_IN_TIME,
        ),
        "sound": KindRules(
            framed=False,
            encoders=("mel", "cnn1d", "lstm", "tcn"),
            most_channels=8,
            most_hz=48_000,
            augments=(*_IN_TIME, "bands"),
        ),
        "image": KindRules(
            framed=True,
            encoders=("cnn2d",),
            most_channels=16,
            most_hz=240,
            augments=("shift", *_EVERY, "mask", "rotate_deg", "zoom", "flip"),
        ),
        "vector": KindRules(
            framed=True, encoders=("mlp",), most_channels=4096, most_hz=1000, augments=_EVERY
        ),
        "text": KindRules(framed=True, encoders=("text",), most_channels=4096, most_hz=1000),
    }
)
_RULES: Final[Mapping[object, KindRules]] = {kind: rules for kind, rules in KINDS.items()}  # noqa: C416 - wider keys
"""The same, for words that may be none of the kinds."""


def with_encoder_kinds(task: object) -> object:
    """Complete the tables ``network.encoders`` of a task's raw values that name no ``kind``.

    What is not of a task's form is returned as it is: the models refuse it.
    """
    match task:
        case {"modalities": [*modalities], "network": {"encoders": dict(encoders), **network}, **rest}:
            pass
        case _:
            return task
    kinds = dict(_name_and_kind(modality) for modality in modalities)
    completed = {name: _with_kind(table, kinds.get(str(name), "")) for name, table in encoders.items()}
    return {**rest, "modalities": modalities, "network": {**network, "encoders": completed}}


def _with_kind(table: object, kind: str) -> object:
    rules = _RULES.get(kind)
    return {"kind": rules.encoders[0], **table} if rules is not None and isinstance(table, dict) else table


def _name_and_kind(modality: object) -> tuple[str, str]:
    match modality:
        case {"name": str(name), "backbone": dict() | Backbone()} | object(
            name=str(name), backbone=Backbone()
        ):
            return name, "vector"
        case {"name": str(name), "kind": str(kind)} | object(name=str(name), kind=str(kind)):
            return name, kind
        case {"name": str(name)}:
            return name, "stream"
    return "", ""
