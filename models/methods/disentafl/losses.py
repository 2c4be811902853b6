"""The device's equations, one pure function each. Imports torch.

Shapes: B windows, K classes, M modalities, H features of ``h_share``, Q knowledge types (pairs of modality
and target), F latent features, S the numbers of one value or window.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_NONE = -100
"""torch's word for a window whose class does not count."""


def _mean(value_B: Tensor, counts_B: Tensor) -> Tensor:
    """Over what counts; 0 where nothing does."""
    share_B = counts_B.to(value_B.dtype)
    return (value_B * share_B).sum() / share_B.sum().clamp(min=1)


def cross_entropy(logits_BK: Tensor, y_B: Tensor, labelled_B: Tensor) -> Tensor:
    """L_o of a classification: mean over labelled windows, 0 where there is none."""
    known_B = torch.where(labelled_B, y_B, _NONE)
    loss = functional.cross_entropy(logits_BK, known_B, ignore_index=_NONE, reduction="sum")
    return loss / labelled_B.sum().clamp(min=1)


def squared_error(made_BS: Tensor, true_BS: Tensor, labelled_B: Tensor) -> Tensor:
    """L_o of a regression or generation, in normalised units: mean over numbers and labelled windows.

    Args:
        made_BS: prediction.
        true_BS: truth; finite everywhere.
        labelled_B: bool; which windows have one.
    """
    return _mean(torch.square(made_BS - true_BS).mean(dim=1), labelled_B)


def alignment(share_BMH: Tensor, present_BM: Tensor) -> Tensor:
    """L_align: mean of ``||h_share^m - h_share^m'||^2`` over pairs m < m' that are both present.

    The paper's formula subtracts ``h^m'`` from itself; what stands here is what its words say.
    """
    m, n = torch.triu_indices(share_BMH.shape[1], share_BMH.shape[1], offset=1)
    distance_BP = torch.square(share_BMH[:, m] - share_BMH[:, n]).sum(dim=2)
    return _mean(distance_BP, present_BM[:, m] & present_BM[:, n])


def orthogonality(z_BQF: Tensor, there_BQ: Tensor) -> Tensor:
    """L_orth: mean squared cosine between knowledge types, over pairs that a window both has.

    The paper sums inner products, which have no lower bound: opposite and long vectors would win.
    """
    unit_BQF = functional.normalize(z_BQF, dim=2)
    q, r = torch.triu_indices(z_BQF.shape[1], z_BQF.shape[1], offset=1)
    square_BQQ = torch.square(unit_BQF @ unit_BQF.transpose(1, 2))
    return _mean(square_BQQ[:, q, r], there_BQ[:, q] & there_BQ[:, r])


def distillation(z_BQF: Tensor, known_BQF: Tensor, counts_BQ: Tensor) -> Tensor:
    """DisentAFL-KD: mean squared distance between a window's feature and the fleet's mean one of its class.

    Args:
        z_BQF: the device's features.
        known_BQF: the fleet's, of each window's class; no gradient flows into them.
        counts_BQ: bool; whether the window has the modality and the label, and the fleet the class.
    """
    return _mean(torch.square(z_BQF - known_BQF.detach()).mean(dim=2), counts_BQ)


def mean_distillation(z_BQF: Tensor, known_BQF: Tensor, counts_BQ: Tensor) -> Tensor:
    """DisentAFL-KD of a target without classes: the batch's mean feature is drawn to the fleet's mean one.

    Its windows have one row. Drawn to it one by one, they would all become one point, and nothing would be
    left to generate or to measure by.

    Args:
        z_BQF: the device's features.
        known_BQF: the fleet's, the same for every window; no gradient flows into them.
        counts_BQ: bool; whether the window has the modality and the target, and the fleet the row.
    """
    count_Q = counts_BQ.sum(dim=0)
    apart_BQF = torch.where(counts_BQ[:, :, None], z_BQF - known_BQF.detach(), 0.0)
    mean_QF = apart_BQF.sum(dim=0) / count_Q.clamp(min=1)[:, None]
    return _mean(torch.square(mean_QF).mean(dim=1), count_Q > 0)


def total(
    objectives: Sequence[Tensor], align: Tensor, orthogonal: Tensor, weights: tuple[float, float]
) -> Tensor:
    """``L = mean_o L_o + weights[0] * L_align + weights[1] * L_orth`` (Algorithm 1)."""
    return torch.stack(list(objectives)).mean() + weights[0] * align + weights[1] * orthogonal
