"""The device's equations, one pure function each; the coordinator's are in ``prototypes.py`` (NumPy).

(20), the task's loss on completed features, is :func:`models.training.supervised.cross_entropy`.

Shapes: B windows, D features, K classes; ``y_B`` true classes. Gradient never flows into a prototype.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from models.multimodal.prototypes import complete, expected, negative_distances


def imputed(z_BD: Tensor, present_B: Tensor, y_B: Tensor, vbar_KD: Tensor) -> Tensor:
    """PNR, equations (18) and (19): a missing feature becomes the global prototype of the window's class."""
    return torch.where(present_B.unsqueeze(1), z_BD, vbar_KD.detach()[y_B])


def imputed_by_posterior(
    z: Sequence[Tensor], present_BM: Tensor, vbar: Sequence[Tensor], seen: Sequence[Tensor]
) -> list[Tensor]:
    """PNR without the label: a missing feature becomes the posterior-weighted prototype, as at inference.

    Stands in for (18) and (19). No gradient flows into a prototype, nor into the posterior.

    Args:
        z: M features ``z_BD``; those of missing modalities must be finite.
        present_BM: bool.
        vbar: M tables of global prototypes ``vbar_KD``.
        seen: M bool vectors, which classes have one ``(K,)``.

    Returns:
        M completed features ``z_BD``.
    """
    filled = complete([z_BD.detach() for z_BD in z], present_BM, [v_KD.detach() for v_KD in vbar], seen)
    return [
        torch.where(present_BM[:, m : m + 1], z_BD, filled_BD)
        for m, (z_BD, filled_BD) in enumerate(zip(z, filled, strict=True))
    ]


def imputed_by_mean(z_BD: Tensor, present_B: Tensor, vbar_KD: Tensor, seen_K: Tensor) -> Tensor:
    """Mean imputation, in place of (18) and (19): the mean of the modality's prototypes, whatever the class.

    A feature of zeros while no class has one (``seen_K``). No gradient flows into a prototype.
    """
    every_1K = torch.ones(1, len(seen_K))
    return torch.where(present_B.unsqueeze(1), z_BD, expected(every_1K, vbar_KD.detach(), seen_K))


def prototype_cross_entropy(z_BD: Tensor, y_B: Tensor, vbar_KD: Tensor, seen_K: Tensor) -> Tensor:
    """PCE, equation (21), for each window: ``-log softmax_c(-||z - vbar_c||_2)`` at the true class, (B,).

    Only classes with a prototype count; a window whose class has none gets 0.
    """
    scores_BK = negative_distances(z_BD, vbar_KD.detach()).masked_fill(~seen_K, -torch.inf)
    seen_B = seen_K[y_B]
    if not bool(seen_B.any()):
        return z_BD.new_zeros(len(z_BD))
    # rows without a prototype of their class are removed before the softmax: 0 * inf would be NaN
    loss_S = functional.cross_entropy(scores_BK[seen_B], y_B[seen_B], reduction="none")
    return z_BD.new_zeros(len(z_BD)).masked_scatter(seen_B, loss_S)


def rebalanced(ce: Tensor, pce_MB: Tensor, q_MB: Tensor, beta: float) -> Tensor:
    """PLR, equation (22): ``CE + beta * sum_m (1 - q_m) PCE_m``, with one q for each window and modality.

    Args:
        ce: scalar, mean over windows.
        pce_MB: equation (21) for each modality and window; 0 where the modality is missing.
        q_MB: bool.
        beta: weight.
    """
    return ce + beta * (pce_MB * (~q_MB).to(pce_MB.dtype)).sum(dim=0).mean()
