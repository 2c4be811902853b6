"""The network of a task."""

from typing import Annotated

from pydantic import Field

from protocol.base import Name, Wire
from protocol.tasks.kinds import EncoderKind


class Encoder(Wire):
    """The network of one modality."""

    kind: EncoderKind | None = None
    """None: ``cnn1d`` for a stream, ``mel`` for sound, ``cnn2d`` for images, ``mlp`` for vectors."""
    width: Annotated[int, Field(ge=4, le=1024)] = 32
    """Channels of the first convolution, hidden units of the LSTM or of a layer, or the size of a token."""
    depth: Annotated[int, Field(ge=1, le=8)] = 5
    """Convolutions, or stacked layers or blocks."""
    residual: bool = False
    """``cnn2d``, ``mel``: convolutions in pairs, with a connection around each pair."""
    bands: Annotated[int, Field(ge=8, le=128)] = 64
    """``mel``: bands of the spectrogram."""


class Network(Wire):
    """Encoders by modality name (absent: the default encoder), one feature size for all, one head."""

    encoders: dict[Name, Encoder] = Field(default_factory=dict)
    feature_dim: Annotated[int, Field(ge=4, le=1024)] = 128
    hidden_dim: Annotated[int, Field(ge=4, le=4096)] = 128
