"""The encoders by kind, as a task names them (``protocol.tasks.kinds``)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from torch import nn

from models.multimodal.encoders.convolutions1d import Cnn1d
from models.multimodal.encoders.convolutions2d import Cnn2d
from models.multimodal.encoders.dense import Mlp, Text
from models.multimodal.encoders.mel import Mel
from models.multimodal.encoders.recurrent import Lstm
from models.multimodal.encoders.tcn import Tcn
from models.multimodal.encoders.transformer import Transformer1d
from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder
from protocol.tasks.task import Modality

Factory = Callable[[Encoder, Modality, int, int], nn.Module]
"""Makes the encoder of a modality, with initial values from torch's global random generator.

Arguments: the table of the task, the modality, T of its windows, D of the feature. The module has ``steps()``
and takes ``x_BCT``; it may have ``any_length`` and ``window_values``
(``models.multimodal.encoders.steps.ModalityEncoder``).
"""


def _over_time(family: type[Cnn1d] | type[Lstm] | type[Tcn] | type[Transformer1d]) -> Factory:
    def made(encoder: Encoder, modality: Modality, samples: int, feature_dim: int) -> nn.Module:
        return family(modality.channels, samples, encoder.width, encoder.depth, feature_dim)

    return made


def _over_values(family: type[Mlp] | type[Text]) -> Factory:
    def made(encoder: Encoder, modality: Modality, samples: int, feature_dim: int) -> nn.Module:
        return family(modality.channels * samples, encoder.width, encoder.depth, feature_dim)

    return made


def _cnn2d(encoder: Encoder, modality: Modality, _samples: int, feature_dim: int) -> nn.Module:
    return Cnn2d(
        modality.channels,
        (modality.height or 1, modality.width or 1),
        encoder.width,
        encoder.depth,
        feature_dim,
        residual=encoder.residual,
    )


def _mel(encoder: Encoder, modality: Modality, samples: int, feature_dim: int) -> nn.Module:
    return Mel(
        modality.channels,
        modality.rate_hz,
        samples,
        feature_dim,
        bands=encoder.bands,
        width=encoder.width,
        depth=encoder.depth,
        residual=encoder.residual,
    )


ENCODERS: Final[Mapping[str, Factory]] = MappingProxyType(
    {
        "cnn1d": _over_time(Cnn1d),
        "lstm": _over_time(Lstm),
        "tcn": _over_time(Tcn),
        "transformer1d": _over_time(Transformer1d),
        "mel": _mel,
        "cnn2d": _cnn2d,
        "mlp": _over_values(Mlp),
        "text": _over_values(Text),
    }
)
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
