"""The encoders by kind, as a task names them (``protocol.tasks.kinds``)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from torch import nn

from models.multimodal.encoders.convolutions1d import Cnn1d
from models.multimodal.encoders.recurrent import Lstm
from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder
from protocol.tasks.task import Modality

Factory = Callable[[Encoder, Modality, int, int], nn.Module]
"""Makes the encoder of a modality, with initial values from torch's global random generator.

Arguments: the table of the task, the modality, T of its windows, D of the feature. The module has ``steps()``
and takes ``x_BCT``; it may have ``any_length`` and ``window_values``
(``models.multimodal.encoders.steps.ModalityEncoder``).
"""


def _cnn1d(encoder: Encoder, modality: Modality, samples: int, feature_dim: int) -> nn.Module:
    return Cnn1d(modality.channels, samples, encoder.width, encoder.depth, feature_dim)


def _lstm(encoder: Encoder, modality: Modality, samples: int, feature_dim: int) -> nn.Module:
    return Lstm(modality.channels, samples, encoder.width, encoder.depth, feature_dim)


ENCODERS: Final[Mapping[str, Factory]] = MappingProxyType({"cnn1d": _cnn1d, "lstm": _lstm})
"""By ``Encoder.kind``."""


def make_encoder(encoder: Encoder, modality: Modality, samples: int, feature_dim: int) -> nn.Module:
    """The encoder of a task's modality, with torch's own initial values (set the seed before).

    Raises:
        Misconfigured: this release has no such encoder.
    """
    factory = ENCODERS.get(encoder.kind or "")
    if factory is None:
        known = ", ".join(ENCODERS)
        raise Misconfigured(
            f"network.encoders.{modality.name}: this release has no encoder {encoder.kind!r} (known: {known})"
        )
    return factory(encoder, modality, samples, feature_dim)
