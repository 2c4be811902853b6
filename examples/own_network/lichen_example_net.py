"""An encoder of your own for a fleet of lichen: separable convolutions over time."""

from typing import Any

import torch
from torch import Tensor, nn


class Separable(nn.Module):
    """Convolutions of each channel by itself, then across channels; the mean over time."""

    any_length = True  # windows may be of another length than the task's, also in the exported model

    def __init__(self, channels: int, width: int, depth: int, kernel: int, feature_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(channels, width, 1)]
        for _ in range(depth):
            each = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
            layers += [each, nn.Conv1d(width, width, 1, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(width, feature_dim)

    def forward(self, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD`` of windows ``x_BCT``, which are in the task's scale."""
        z_BD: Tensor = self.out(torch.mean(self.layers(x_BCT), dim=2))
        return z_BD


def make(
    *, modality: Any, samples: int, feature_dim: int, width: int, depth: int, kernel: int = 9
) -> nn.Module:
    """The encoder of a modality; ``kernel`` is an option of the task."""
    if kernel > samples:
        raise ValueError(f"kernel: {kernel} is longer than a window of {modality.name}, {samples} samples")
    return Separable(modality.channels, width, depth, kernel, feature_dim)
