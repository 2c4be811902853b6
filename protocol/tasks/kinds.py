"""Kinds of modalities: what a window of each holds, and which encoders take it.

A window of every kind is ``x_CT`` float32. ``stream``, ``sound``: C channels, T grid points. ``image``: C
channels, T = height x width pixels, row by row, as the camera gives them (0 to 255, unless the source says
otherwise). ``vector``: C values, T = 1. ``text``: counts of its hashed n-grams in C buckets, T = 1. Of the
last three a window holds the newest frame in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

ModalityKind = Literal["stream", "sound", "image", "vector", "text"]
EncoderKind = Literal["cnn1d", "lstm", "tcn", "transformer1d", "mel", "cnn2d", "mlp", "text"]


@dataclass(frozen=True)
class KindRules:
    """The rules of one kind.

    Attributes:
        framed: a window holds one frame, not samples on a grid.
        encoders: that take it; the first is the default.
        most_channels: limit.
        most_hz: limit of ``rate_hz``.
    """

    framed: bool
    encoders: tuple[EncoderKind, ...]
    most_channels: int
    most_hz: float

    def trouble(self, channels: int, rate_hz: float, size: tuple[int | None, int | None]) -> str:
        """What does not fit, in words; empty if all does. ``size``: height and width."""
        if channels > self.most_channels:
            return f"channels: at most {self.most_channels} (found {channels})"
        if rate_hz > self.most_hz:
            return f"rate_hz: at most {self.most_hz:g} (found {rate_hz:g})"
        if "cnn2d" in self.encoders and None in size:
            return "height and width are needed, in pixels"
        if "cnn2d" not in self.encoders and size != (None, None):
            return "height and width are for images; leave them out"
        return ""


KINDS: Final[Mapping[ModalityKind, KindRules]] = MappingProxyType(
    {
        "stream": KindRules(
            framed=False,
            encoders=("cnn1d", "lstm", "tcn", "transformer1d"),
            most_channels=64,
            most_hz=20_000,
        ),
        "sound": KindRules(
            framed=False, encoders=("mel", "cnn1d", "lstm", "tcn"), most_channels=8, most_hz=48_000
        ),
        "image": KindRules(framed=True, encoders=("cnn2d",), most_channels=16, most_hz=240),
        "vector": KindRules(framed=True, encoders=("mlp",), most_channels=4096, most_hz=1000),
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
        case {"name": str(name), "kind": str(kind)} | object(name=str(name), kind=str(kind)):
            return name, kind
        case {"name": str(name)}:
            return name, "stream"
    return "", ""
