"""Hyper-modal vectors: an entity's parts in the space of its embedding. Imports torch.

Shapes: B entities, M modalities, P parts (the structural embedding, then the modalities: P = 1 + M), D
numbers of a part, F of a modality's features.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

STRUCTURE: Final = 0
"""The part of the structural embedding."""


def with_structure(present_BM: Tensor) -> Tensor:
    """``present_BP`` of ``present_BM`` (both bool): the structural embedding is always present."""
    return nn.functional.pad(present_BM, (1, 0), value=True)


def shown(h_BPD: Tensor, present_BP: Tensor) -> Tensor:
    """M * H: zeros where a part is absent, whatever it holds (NaN too); no gradient flows there."""
    return torch.where(present_BP[:, :, None], h_BPD, 0.0)


def imputed(h_BPD: Tensor, present_BP: Tensor, made_BPD: Tensor) -> Tensor:
    """Equation (6), ``M * H + (1 - M) * made``: present parts are unchanged, to the bit.

    Args:
        h_BPD: hyper-modal vectors; absent parts are not read.
        present_BP: bool; which parts are present.
        made_BPD: a network's output for them; present parts are not read.
    """
    return torch.where(present_BP[:, :, None], h_BPD, made_BPD)


def masked_distance(made_BPD: Tensor, true_BPD: Tensor, present_BP: Tensor) -> Tensor:
    """``||M * made - M * true||^2`` (equation 7), summed over numbers, mean over entities; 0 of none.

    No gradient flows into ``true_BPD``: an embedding would move to where the network reaches it most easily,
    which is zero.

    Args:
        made_BPD: a network's output for noised or partly hidden vectors.
        true_BPD: the vectors themselves.
        present_BP: bool; absent parts do not count, whatever either holds there (NaN too).
    """
    apart_BPD = torch.where(present_BP[:, :, None], made_BPD - true_BPD.detach(), 0.0)
    return torch.square(apart_BPD).sum() / max(1, len(present_BP))


class Projections(nn.Module):
    """``V = W_v E_v``: features of every modality, projected into the space of the structural embeddings.

    Args:
        features: F of every modality, in the knowledge graph's order.
        dim: D.
    """

    def __init__(self, features: Mapping[str, int], dim: int) -> None:
        super().__init__()
        self.names = tuple(features)
        self.weights = nn.ModuleList(nn.Linear(size, dim, bias=False) for size in features.values())

    def forward(self, s_BD: Tensor, features: Mapping[str, Tensor], present_BM: Tensor) -> Tensor:
        """H (section IV-A), ``h_BPD``: the parts of entities, zeros where a modality is absent.

        Args:
            s_BD: structural embeddings.
            features: ``x_BF`` of every modality by its name; absent ones are not read.
            present_BM: bool, in the order of ``names``.
        """
        parts = [s_BD]
        for m, (name, weight) in enumerate(zip(self.names, self.weights, strict=True)):
            parts.append(weight(torch.where(present_BM[:, m, None], features[name], 0.0)))
        return torch.stack(parts, dim=1)
