"""The encoder ``tcn``: residual blocks of dilated convolutions over time."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import nn

from models.multimodal.encoders.steps import BatchNorm, ModalityEncoder, Residual, Step

_KERNEL: Final = 3
_FIRST_KERNEL: Final = 5
_LEAST_STEPS: Final = 256


def stride_of(samples: int, least: int) -> int:
    """The stride of a first convolution: the largest power of two that leaves this many steps or more.

    >>> stride_of(128, 256), stride_of(16_000, 256)
    (1, 32)
    """
    return 1 << max(0, (samples // least).bit_length() - 1)


class Tcn(ModalityEncoder):
    """A strided convolution, blocks of two dilated convolutions, the mean over time, a linear layer.

    Windows are complete when they are encoded, so convolutions look both ways: padding keeps the length.
    Block i has dilation ``2 ** i``. The first convolution shortens windows of 512 samples or more.

    Args:
        channels: C of the input.
        samples: T of the task's windows.
        width: channels of all convolutions.
        depth: number of blocks.
        feature_dim: D of the output.
    """

    any_length = True

    def __init__(self, channels: int, samples: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        stride = stride_of(samples, _LEAST_STEPS)
        kernel = max(_FIRST_KERNEL, 2 * stride + 1)
        # No bias: the BatchNorm that follows has one.
        layers: list[nn.Module] = [
            nn.Conv1d(channels, width, kernel, stride, padding=kernel // 2, bias=False),
            BatchNorm(width),
            nn.ReLU(),
        ]
        layers += [Residual(_branch(width, 1 << i)) for i in range(depth)]
        self.convolutions = nn.Sequential(*layers)
        self.fc = nn.Linear(width, feature_dim)
        self.window_values = max(channels * samples, width * -(-samples // stride))

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own, or within a :class:`Residual`."""
        return [*self.convolutions, partial(torch.mean, dim=2), self.fc]


def _branch(width: int, dilation: int) -> list[nn.Module]:
    return [*_dilated(width, dilation), nn.ReLU(), *_dilated(width, dilation)]


def _dilated(width: int, dilation: int) -> list[nn.Module]:
    padding = dilation * (_KERNEL // 2)
    made = nn.Conv1d(width, width, _KERNEL, padding=padding, dilation=dilation, bias=False)
    return [made, BatchNorm(width)]
