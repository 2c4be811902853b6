"""The encoder ``cnn1d``."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import nn

from models.multimodal.encoders.steps import BatchNorm, ModalityEncoder, Step

_KERNEL: Final = 5
_MIN_SAMPLES: Final = 8
"""Pooling stops before the time axis is shorter than this."""


def widths_of(width: int, depth: int) -> tuple[int, ...]:
    """Channels of each convolution: two layers of ``width``, three of twice that, then four times.

    >>> widths_of(32, 5)
    (32, 32, 64, 64, 64)
    """
    return tuple(width * (1 if i < 2 else 2 if i < 5 else 4) for i in range(depth))  # noqa: PLR2004 - the rule above


def poolings_of(samples: int, depth: int) -> int:
    """How many of the first layers halve the time axis: as many as leave eight samples or more.

    16 samples are halved once, 128 four times, 1024 seven times if there are as many layers.
    """
    return max(0, min(depth, (samples // _MIN_SAMPLES).bit_length() - 1))


class Cnn1d(ModalityEncoder):
    """Convolutions (kernel 5, BatchNorm, ReLU, halving), the mean over time, a linear layer.

    Args:
        channels: C of the input.
        samples: T of the input; fixes how often the time axis is halved.
        width: channels of the first convolution; see :func:`widths_of`.
        depth: number of convolutions.
        feature_dim: D of the output.
    """

    any_length = True

    def __init__(self, channels: int, samples: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        halved = poolings_of(samples, depth)
        before, values = channels, [channels * samples]
        for i, after in enumerate(widths_of(width, depth)):
            # No bias: the BatchNorm that follows has one.
            layers += [nn.Conv1d(before, after, _KERNEL, padding=_KERNEL // 2, bias=False)]
            layers += [BatchNorm(after), nn.ReLU()]
            values.append(after * (samples >> min(i, halved)))
            if i < halved:
                layers.append(nn.MaxPool1d(2))
            before = after
        self.convolutions = nn.Sequential(*layers)
        self.fc = nn.Linear(before, feature_dim)
        self.window_values = max(values)

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        return [*self.convolutions, partial(torch.mean, dim=2), self.fc]
