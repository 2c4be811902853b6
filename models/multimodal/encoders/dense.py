"""The encoders ``mlp`` and ``text``: linear layers over the values of a frame. And none: linear networks."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from models.multimodal.encoders.steps import BatchNorm, ModalityEncoder, Step

_SHORTEST: Final = 1e-6
"""Added to the squared length of a text's counts, so that an empty text is divided by no zero."""


class TextWeights(nn.Module):
    """Counts as weights of length 1: a repeated n-gram counts less than in proportion."""

    def forward(self, counts: Tensor) -> Tensor:
        """Of the same shape; buckets on axis 1."""
        logs = torch.log1p(torch.relu(counts))
        return logs / torch.sqrt(logs.square().sum(dim=1, keepdim=True) + _SHORTEST)


def _layers(before: int, width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        # No bias: the BatchNorm that follows has one.
        layers += [nn.Linear(before, width, bias=False), BatchNorm(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers)


class Mlp(ModalityEncoder):
    """BatchNorm of the input, hidden layers (BatchNorm, ReLU), a linear layer.

    Args:
        values: of a window: C times T.
        width: units of each hidden layer.
        depth: number of hidden layers.
        feature_dim: D of the output.
    """

    def __init__(self, values: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        self.norm_in = BatchNorm(values)
        self.layers = _layers(values, width, depth)
        self.fc = nn.Linear(width, feature_dim)
        self.window_values = max(values, width)

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        return [flat, self.norm_in, *self.layers, self.fc]


class Text(ModalityEncoder):
    """Counts of n-grams in buckets: their logarithms at length 1, an embedding of each bucket, hidden layers.

    The first layer is the embedding: a text is the sum of its buckets' vectors, by weight.

    Args:
        buckets: C of the input.
        width: of an embedding, and units of each hidden layer.
        depth: number of layers, the embedding among them.
        feature_dim: D of the output.
    """

    def __init__(self, buckets: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        self.weights = TextWeights()
        self.layers = _layers(buckets, width, depth)
        self.fc = nn.Linear(width, feature_dim)
        self.window_values = max(buckets, width)

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        return [flat, self.weights, *self.layers, self.fc]


class Unchanged(ModalityEncoder):
    """No encoder: the values of a window are the feature. It has no tensors.

    Args:
        values: of a window: C times T.
    """

    def __init__(self, values: int) -> None:
        super().__init__()
        self.window_values = values

    def steps(self) -> Sequence[Step]:
        """What a window goes through."""
        return [flat]


def flat(x_BCT: Tensor) -> Tensor:
    """A window's values in a row."""
    return x_BCT.flatten(1)
