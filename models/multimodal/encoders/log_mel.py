"""The log-mel spectrogram as a module of plain operators: a convolution and a matrix product."""

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

WINDOW_S: Final = 0.025
HOP_S: Final = 0.010
FLOOR: Final = 1e-6
"""Added to the power before the logarithm; white noise of variance 1 has power 1 in every band."""


class LogMel(nn.Module):
    """``x_BCT`` of sound to ``log(floor + power)`` of mel bands: ``(B, C * bands, F)``, F frames.

    Frames of 25 ms (Hann) every 10 ms; frame i is centred on sample ``i * hop``, and samples beyond the ends
    are zeros, so that ``F = ceil(T / hop)`` and any length will do. A frame is filled with zeros to a power
    of two and transformed; the power is relative to that of the Hann window. The bands are triangles, evenly
    spaced on the mel scale from 0 to half the rate, at least one frequency wide on each side, with weights
    that sum to 1.

    Its numbers are fixed: they are buffers that no ``state_dict`` has.

    Args:
        rate_hz: of the sound.
        bands: of the spectrogram, for each channel.
    """

    dft: Tensor
    mel: Tensor

    def __init__(self, rate_hz: float, bands: int) -> None:
        super().__init__()
        self.bands = bands
        self.hop = max(1, round(HOP_S * rate_hz))
        self.length = max(2, round(WINDOW_S * rate_hz))
        size = 1 << (self.length - 1).bit_length()
        self.frequencies = size // 2 + 1
        dft, mel = _dft(self.length, size), mel_filters(rate_hz, size, bands)
        self.register_buffer("dft", torch.from_numpy(dft)[:, None], persistent=False)
        self.register_buffer("mel", torch.from_numpy(mel), persistent=False)

    def frames(self, samples: int) -> int:
        """F of a window of so many samples."""
        return math.ceil(samples / self.hop)

    def forward(self, x_BCT: Tensor) -> Tensor:
        """The spectrogram; channel by channel, each with its bands from the lowest."""
        channels, before = x_BCT.shape[1], (self.length - 1) // 2
        padded = functional.pad(x_BCT, (before, self.length - 1 - before))
        both = functional.conv1d(padded.flatten(0, 1).unsqueeze(1), self.dft, stride=self.hop)
        real, imaginary = torch.split(both, self.frequencies, dim=1)
        power = torch.matmul(self.mel, real.square() + imaginary.square())
        spectrum = torch.log(FLOOR + power)
        return spectrum if channels == 1 else spectrum.reshape(-1, channels * self.bands, power.shape[2])


def _dft(length: int, size: int) -> NDArray[np.float32]:
    """Rows of cosines, then of sines, by Hann's window: ``(2 * frequencies, length)``."""
    n = np.arange(length)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / length)
    hann /= np.sqrt(np.square(hann).sum())
    # by whole turns, so that large products lose no digits
    angle = 2 * np.pi * ((np.arange(size // 2 + 1)[:, None] * n) % size) / size
    return np.concatenate([np.cos(angle) * hann, np.sin(angle) * hann]).astype(np.float32)


def mel_filters(rate_hz: float, size: int, bands: int) -> NDArray[np.float32]:
    """Weights ``(bands, size // 2 + 1)`` of the triangles."""
    step = rate_hz / size
    top = 2595 * np.log10(1 + rate_hz / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    low, centre, high = points[:-2], points[1:-1], points[2:]
    below, above = np.maximum(centre - low, step), np.maximum(high - centre, step)
    away = np.arange(size // 2 + 1) * step - centre[:, None]
    weights = np.maximum(0, 1 - np.where(away < 0, -away / below[:, None], away / above[:, None]))
    filters: NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return filters
