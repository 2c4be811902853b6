"""The encoder ``cnn2d``: convolutions over the rows and columns of an image, or of a spectrogram."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from models.multimodal.encoders.convolutions1d import widths_of
from models.multimodal.encoders.steps import BatchNorm, ModalityEncoder, Residual, Step

_KERNEL: Final = 3
_MIN_SIDE: Final = 4
"""Pooling stops before an axis is shorter than this."""
_MEAN: Final = partial(torch.mean, dim=(2, 3))


@dataclass(frozen=True)
class Convolutions2d:
    """Convolutions (kernel 3, BatchNorm, ReLU, halving of both axes), as modules.

    Attributes:
        layers: each BatchNorm one of its own, or within a :class:`Residual`.
        channels: of their output.
        size: height and width of their output.
        values: that one input has between two of them, at most.
    """

    layers: Sequence[nn.Module]
    channels: int
    size: tuple[int, int]
    values: int


def convolutions(
    channels: int,
    size: tuple[int, int],
    width: int,
    depth: int,
    *,
    residual: bool,
    shortest: tuple[int, int] = (_MIN_SIDE, _MIN_SIDE),
) -> Convolutions2d:
    """The convolutions of an input ``(B, channels, height, width)``.

    Args:
        channels: of the input.
        size: height and width of the input; fix how often each axis is halved.
        width: channels of the first convolution; see :func:`widths_of`.
        depth: number of convolutions.
        residual: a connection around each pair of convolutions after the first; a last one without a partner
            has none. The axes are halved after the first and after each pair.
        shortest: each axis is halved as long as this remains.
    """
    layers: list[nn.Module] = []
    before, values = channels, [channels * size[0] * size[1]]
    for widths in _groups(widths_of(width, depth), residual=residual):
        layers += _pair(before, widths) if len(widths) > 1 else [*_convolution(before, widths[0]), nn.ReLU()]
        before = widths[-1]
        values.append(max(widths) * size[0] * size[1])
        factors = tuple(2 if side // 2 >= least else 1 for side, least in zip(size, shortest, strict=True))
        if factors != (1, 1):
            layers.append(nn.MaxPool2d(factors))
            size = (size[0] // factors[0], size[1] // factors[1])
    return Convolutions2d(layers, before, size, max(values))


def _groups(widths: Sequence[int], *, residual: bool) -> list[tuple[int, ...]]:
    if not residual:
        return [(width,) for width in widths]
    return [tuple(widths[:1]), *(tuple(widths[i : i + 2]) for i in range(1, len(widths), 2))]


def _convolution(before: int, after: int, kernel: int = _KERNEL) -> list[nn.Module]:
    # No bias: the BatchNorm that follows has one.
    return [nn.Conv2d(before, after, kernel, padding=kernel // 2, bias=False), BatchNorm(after)]


def _pair(before: int, widths: Sequence[int]) -> list[nn.Module]:
    first, second = widths
    branch = [*_convolution(before, first), nn.ReLU(), *_convolution(first, second)]
    return [Residual(branch, _convolution(before, second, 1) if before != second else ())]


class Cnn2d(ModalityEncoder):
    """Convolutions over an image, the mean over its pixels, a linear layer.

    Args:
        channels: C of the input.
        size: height and width of the image; T is their product, the pixels row by row.
        width: channels of the first convolution.
        depth: number of convolutions.
        feature_dim: D of the output.
        residual: connections around pairs of convolutions.
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        width: int,
        depth: int,
        feature_dim: int,
        *,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.size = size
        made = convolutions(channels, size, width, depth, residual=residual)
        self.convolutions = nn.Sequential(*made.layers)
        self.fc = nn.Linear(made.channels, feature_dim)
        self.window_values = made.values

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        return [self.as_image, *self.convolutions, _MEAN, self.fc]

    def as_image(self, x_BCT: Tensor) -> Tensor:
        """Rows and columns in place of a row of pixels."""
        return torch.unflatten(x_BCT, 2, self.size)
