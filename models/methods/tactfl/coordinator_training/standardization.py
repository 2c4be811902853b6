"""Standard coordinates of frozen features, for training a head on them. Imports torch.

Features of one network differ little compared with their mean, and along some axes far more than along
others. Gradient descent on them is slow. In coordinates of mean 0 and spread 1 it is not, and a linear layer
can be converted to them and back: the function it computes stays the same.

Shapes: B windows, M modalities, F features of all modalities, concatenated (M * D).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor, nn

_FLAT: Final = 0.1
"""Spreads count as at least this share of their root mean square, so that noise is not amplified."""


@dataclass(frozen=True)
class Standard:
    """The coordinates ``(z - mean) / spread``.

    Attributes:
        mean_F: of each feature, over the windows that have its modality; 0 if none has.
        spread_F: standard deviation, likewise; 1 if none has, or if nothing spreads.
    """

    mean_F: Tensor
    spread_F: Tensor

    @classmethod
    def of(cls, z: Sequence[Tensor], present_BM: Tensor) -> Self:
        """From each modality's ``z_BD`` and which windows have it; sums in float64."""
        means, spreads = [], []
        for m, z_BD in enumerate(z):
            here_HD = z_BD[present_BM[:, m]].to(torch.float64)
            if not len(here_HD):
                here_HD = torch.zeros_like(z_BD[:1], dtype=torch.float64)
            spread_D = here_HD.std(dim=0, correction=0)
            usual = spread_D.square().mean().sqrt()
            spreads.append(torch.where(usual > 0, spread_D.clamp(min=_FLAT * usual), 1.0))
            means.append(here_HD.mean(dim=0))
        return cls(torch.cat(means), torch.cat(spreads))

    def enter(self, layer: nn.Linear) -> None:
        """Convert a layer from features to these coordinates."""
        with torch.no_grad():
            weight_HF = layer.weight.to(torch.float64)
            layer.bias.copy_(layer.bias + weight_HF @ self.mean_F)
            layer.weight.copy_(weight_HF * self.spread_F)

    def leave(self, layer: nn.Linear) -> None:
        """Convert a layer back."""
        with torch.no_grad():
            weight_HF = layer.weight.to(torch.float64) / self.spread_F
            layer.bias.copy_(layer.bias - weight_HF @ self.mean_F)
            layer.weight.copy_(weight_HF)

    def __call__(self, z_BF: Tensor) -> Tensor:
        """Features in these coordinates, float32."""
        return ((z_BF - self.mean_F) / self.spread_F).to(torch.float32)
