"""From the features of all modalities to class scores."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Head(nn.Module):
    """Two fully connected layers on the concatenation of the features, in the task's modality order.

    Args:
        modalities: M.
        feature_dim: D of every feature.
        hidden_dim: units between the two layers.
        classes: K.
    """

    def __init__(self, modalities: int, feature_dim: int, hidden_dim: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(modalities * feature_dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, classes)

    def forward(self, z: Sequence[Tensor]) -> Tensor:
        """``logits_BK`` of M features ``z_BD``."""
        logits: Tensor = self.fc2(torch.relu(self.fc1(torch.cat(tuple(z), dim=1))))
        return logits


class LinearHead(nn.Module):
    """One fully connected layer on the concatenation of the features, in the task's modality order.

    Its layer has the name of the last one of :class:`Head`: rows are classes in both.

    Args:
        modalities: M.
        feature_dim: D of every feature.
        classes: K.
    """

    def __init__(self, modalities: int, feature_dim: int, classes: int) -> None:
        super().__init__()
        self.fc2 = nn.Linear(modalities * feature_dim, classes)

    def forward(self, z: Sequence[Tensor]) -> Tensor:
        """``logits_BK`` of M features ``z_BD``."""
        logits: Tensor = self.fc2(torch.cat(tuple(z), dim=1))
        return logits
