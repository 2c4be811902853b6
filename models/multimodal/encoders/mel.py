"""The encoder ``mel``: a log-mel spectrogram of sound, then convolutions as in ``cnn2d``."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from models.multimodal.encoders.convolutions2d import convolutions
from models.multimodal.encoders.log_mel import LogMel
from models.multimodal.encoders.steps import BatchNorm, ModalityEncoder, Step

_SHORTEST: Final = (4, 8)
"""Bands and frames that pooling leaves; eight frames, so that an eighth of a window still passes."""


class Mel(ModalityEncoder):
    """Log-mel inside the graph, BatchNorm of each band, convolutions, the mean over time, a linear layer.

    BatchNorm of each band takes out what a microphone and a room do to it. The linear layer reads the bands
    that pooling leaves apart: a high tone is not a low one.

    Args:
        channels: C of the input.
        rate_hz: of the sound.
        samples: T of the task's windows.
        feature_dim: D of the output.
        bands: of the spectrogram.
        width: channels of the first convolution.
        depth: number of convolutions.
        residual: connections around pairs of convolutions.
    """

    any_length = True

    def __init__(
        self,
        channels: int,
        rate_hz: float,
        samples: int,
        feature_dim: int,
        *,
        bands: int,
        width: int,
        depth: int,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.spectrum = LogMel(rate_hz, bands)
        self.norm_in = BatchNorm(channels * bands)
        frames = self.spectrum.frames(samples)
        made = convolutions(channels, (bands, frames), width, depth, residual=residual, shortest=_SHORTEST)
        self.convolutions = nn.Sequential(*made.layers)
        self.fc = nn.Linear(made.channels * made.size[0], feature_dim)
        self.window_values = max(made.values, 2 * channels * self.spectrum.frequencies * frames)

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        mean = partial(torch.mean, dim=3)
        return [self.spectrum, self.norm_in, self._image, *self.convolutions, mean, _flat, self.fc]

    def _image(self, spectrum: Tensor) -> Tensor:
        return torch.unflatten(spectrum, 1, (self.channels, self.spectrum.bands))


def _flat(z_BWF: Tensor) -> Tensor:
    return z_BWF.flatten(1)
