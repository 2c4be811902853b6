"""Distillation of features: devices send mean features and pull theirs towards the fleet's means.

A segment is a part of a network's features that devices have in common, ``z_BF``, with K rows: the classes of
its target, or one row where it has none (regression, generation, or no target at all).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lichen_lab.benchmarks.studies.disentafl.baselines.sharing import Linked
from models.contract import Profile

Rows = dict[str, Tensor]
"""Segment -> ``row_KF``, mean features by class; NaN without any window."""
Sums = dict[str, tuple[Tensor, Tensor]]
"""Segment -> ``sum_KF`` and ``count_K``."""


def add(sums: Sums, z: Mapping[str, Tensor], y: Mapping[str, Tensor], classes: Mapping[str, int]) -> None:
    """Add a batch to the sums.

    Args:
        sums: changed.
        z: segment -> ``z_BF``.
        y: segment -> ``y_B`` int64, its row; -1: none.
        classes: segment -> K.
    """
    for name, z_BF in z.items():
        known_B = y[name] >= 0
        if name not in sums:
            sums[name] = torch.zeros(classes[name], z_BF.shape[1]), torch.zeros(classes[name])
        sum_KF, count_K = sums[name]
        sum_KF.index_add_(0, y[name][known_B], z_BF.detach()[known_B])
        count_K += torch.bincount(y[name][known_B], minlength=classes[name])


def exchanged(sums: Mapping[str, Sums], profiles: Mapping[str, Profile], linked: Linked) -> dict[str, Rows]:
    """Device -> mean rows over the devices linked with it, for each segment."""
    made: dict[str, Rows] = {name: {} for name in sums}
    for name, mine in sums.items():
        for segment in mine:
            others = [
                theirs[segment]
                for other, theirs in sums.items()
                if segment in theirs and linked(segment, profiles[name], profiles[other])
            ]
            if others:
                sum_KF = torch.stack([sum_KF for sum_KF, _ in others]).sum(dim=0)
                count_K = torch.stack([count_K for _, count_K in others]).sum(dim=0)
                made[name][segment] = torch.where(count_K > 0, sum_KF.T / count_K, torch.nan).T
    return made


def loss(z: Mapping[str, Tensor], y: Mapping[str, Tensor], rows: Rows) -> Tensor:
    """Mean over segments of the squared distance (mean over F) of features from the fleet's.

    With classes, of each window's from the row of its class; with a single row, of the batch's mean from it:
    drawing every window to one point would leave nothing to tell them apart by.
    """
    terms = []
    for name, row_KF in rows.items():
        known_B = y[name] >= 0
        if len(row_KF) == 1:
            far = z[name][known_B].mean(dim=0) - row_KF[0]
        else:
            wanted_BF = row_KF[y[name].clamp(min=0)]
            known_B = known_B & ~wanted_BF[:, 0].isnan()
            far = z[name][known_B] - wanted_BF[known_B]
        if known_B.any():
            terms.append(far.square().mean())
    return torch.stack(terms).mean() if terms else torch.zeros(())
