"""Phi (section III-D, appendix C-A): one embedding of an entity's parts. Imports torch.

Shapes: B entities, P parts (structure first, see :mod:`models.knowledge_graph.networks.modality_vectors`), D
numbers of a part, V views
(embeddings of an entity that are scored apart: one, but P where modalities are split), L candidates.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from models.knowledge_graph.networks.modality_vectors import STRUCTURE, shown


def log_probabilities(scores_VBL: Tensor) -> Tensor:
    """Equation (1) over L candidates, ``logp_BL``: the log of the views' mean probability.

    Args:
        scores_VBL: of each view; ``-inf`` for a candidate that does not count, in all views alike.
    """
    logp_VBL = torch.log_softmax(scores_VBL, dim=2)
    if len(logp_VBL) == 1:
        return logp_VBL[0]
    out_VBL = logp_VBL == -torch.inf  # logsumexp of -inf alone has no gradient
    mean_BL = torch.logsumexp(logp_VBL.masked_fill(out_VBL, -1e30), dim=0) - math.log(len(logp_VBL))
    return mean_BL.masked_fill(out_VBL.all(dim=0), -torch.inf)


class Fusion(nn.Module):
    """Base of all fusions.

    Args:
        parts: P.
        dim: D.

    Attributes:
        views: V; each is scored with relation embeddings of its own.
    """

    def __init__(self, parts: int, dim: int) -> None:
        super().__init__()
        self.parts, self.dim, self.views = parts, dim, 1

    def forward(self, h_BPD: Tensor, present_BP: Tensor | None = None) -> Tensor:
        """E, ``e_BVD``.

        Args:
            h_BPD: parts, imputed or not.
            present_BP: bool; which of them count (the structure always does). None: all. Absent ones are not
                read.
        """
        if present_BP is None:
            present_BP = torch.ones(h_BPD.shape[:2], dtype=torch.bool)
        return self._fused(shown(h_BPD, present_BP), present_BP)

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:
        """``e_BVD`` of parts that are zeros where absent."""
        raise NotImplementedError


def _mean(h_BPD: Tensor, present_BP: Tensor) -> Tensor:
    """``e_BD``: the mean of the parts that are present; absent ones are zeros."""
    return h_BPD.sum(dim=1) / present_BP.sum(dim=1, keepdim=True)


class Average(Fusion):
    """The mean of the parts that are present (the paper's has all of them)."""

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:
        return _mean(h_BPD, present_BP)[:, None]


class Weighted(Fusion):
    """The parts' sum, each with a trained weight.

    Args:
        parts: P.
        dim: D.
        start: the initial weights; None: 1 / P each, which is the average if all parts are present.
    """

    def __init__(self, parts: int, dim: int, start: Sequence[float] | None = None) -> None:
        super().__init__(parts, dim)
        self.weight_P = nn.Parameter(torch.tensor([1 / parts] * parts if start is None else list(start)))

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:  # noqa: ARG002 - absent ones are zeros
        return (self.weight_P[:, None] * h_BPD).sum(dim=1, keepdim=True)


class FixedWeights(Fusion):
    """The parts' sum by weights that are not trained.

    Args:
        parts: P.
        dim: D.
        modalities: the weight of all modalities together, in equal shares; the structure has the rest.
    """

    def __init__(self, parts: int, dim: int, modalities: float) -> None:
        super().__init__(parts, dim)
        each = modalities / max(parts - 1, 1)
        self._weight_P1 = torch.tensor([1 - modalities, *[each] * (parts - 1)])[:, None]

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:  # noqa: ARG002 - absent ones are zeros
        return (self._weight_P1 * h_BPD).sum(dim=1, keepdim=True)


class Concatenation(Fusion):
    """Two layers on all parts side by side."""

    def __init__(self, parts: int, dim: int) -> None:
        super().__init__(parts, dim)
        self.layers = nn.Sequential(nn.Linear(parts * dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:  # noqa: ARG002 - absent ones are zeros
        e_BD: Tensor = self.layers(h_BPD.flatten(1))
        return e_BD[:, None]


class FusionSplit(Fusion):
    """No fusion: each part is a view, and the average is over probabilities (:func:`log_probabilities`)."""

    def __init__(self, parts: int, dim: int) -> None:
        super().__init__(parts, dim)
        self.views = parts

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:  # noqa: ARG002 - absent ones are zeros
        return h_BPD


class Gated(Fusion):
    """``V' = W_0 (sigmoid(W_1 S) * W_2 V)``: the structure gates each modality.

    Args:
        parts: P.
        dim: D.
        from_zero: the embedding is ``S + sum_m V'_m`` with W_0 zero at first, hence the structure alone until
            a modality helps. False: the mean of S and every V', as in the paper; modalities of little use
            then hurt from the start.
    """

    def __init__(self, parts: int, dim: int, *, from_zero: bool = True) -> None:
        super().__init__(parts, dim)
        self._from_zero = from_zero
        self.w0, self.w1, self.w2 = (
            nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(parts - 1)) for _ in range(3)
        )
        if from_zero:
            for weight in self.w0.parameters():
                nn.init.zeros_(weight)

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:
        s_BD, *others = h_BPD.unbind(dim=1)
        passed = [
            w0(torch.sigmoid(w1(s_BD)) * w2(v_BD))  # no biases: zeros of an absent part stay zeros
            for w0, w1, w2, v_BD in zip(self.w0, self.w1, self.w2, others, strict=True)
        ]
        gated_BPD = torch.stack([s_BD, *passed], dim=1)
        if self._from_zero:
            return gated_BPD.sum(dim=1, keepdim=True)
        return _mean(gated_BPD, present_BP)[:, None]


class Structure(Fusion):
    """The structural embedding alone: FedE, and the lower bound S-Ind."""

    def _fused(self, h_BPD: Tensor, present_BP: Tensor) -> Tensor:  # noqa: ARG002 - it is always there
        return h_BPD[:, STRUCTURE, None]


FUSIONS: Final[Mapping[str, Callable[[int, int], Fusion]]] = {
    "average": Average,
    "concat": Concatenation,
    "gated": Gated,
    "gated_average": partial(Gated, from_zero=False),
    "split": FusionSplit,
    "structure": Structure,
    "weighted": Weighted,
}
"""By name: makes one of P and D. Initial values come from torch's global generator."""
