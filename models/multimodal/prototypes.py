"""Class prototypes as imputation of a missing modality without a label.

The posterior over classes comes from the present modalities, the missing feature is the posterior-weighted
prototype (methods/qqr, "beyond the paper"). Written for ``torch.onnx``: no branch depends on data, so the
same functions serve evaluation and the exported ONNX model.

Shapes: B windows, M modalities, K classes, D features. ``seen_K`` is true for a class with a prototype.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_EPSILON: Final = 1e-12
_EXCLUDED: Final = -1e9
"""In place of minus infinity: its difference with itself is 0, not NaN."""


def normalise(z: Tensor, scale: float) -> Tensor:
    """``scale * z / ||z||`` along the last axis; a zero vector stays zero."""
    return z * (scale / z.square().sum(dim=-1, keepdim=True).clamp(min=_EPSILON).sqrt())


def negative_distances(z_BD: Tensor, values_KD: Tensor) -> Tensor:
    """``-||z - v_c||_2`` for every class, (B, K)."""
    gap_BKD = z_BD.unsqueeze(1) - values_KD.unsqueeze(0)
    return -gap_BKD.square().sum(dim=2).clamp(min=_EPSILON).sqrt()


def log_votes(z_BD: Tensor, values_KD: Tensor, seen_K: Tensor) -> Tensor:
    """One modality's log softmax over the classes that have a prototype in it, (B, K).

    A class without one gets a neutral vote, ``-log`` of the number of classes that have one.
    """
    scores_BK = torch.where(seen_K, negative_distances(z_BD, values_KD), _EXCLUDED)
    count = seen_K.to(z_BD.dtype).sum().clamp(min=1.0)
    return torch.where(seen_K, torch.log_softmax(scores_BK, dim=1), -torch.log(count))


def posterior(
    z: Sequence[Tensor], present_BM: Tensor, values: Sequence[Tensor], seen: Sequence[Tensor]
) -> Tensor:
    """Class probabilities ``p_BK`` from the prototypes of the present modalities.

    The log votes of the present modalities are summed. A class without a prototype in any present modality
    gets probability zero, unless that holds for all classes (nothing is present): then all are equal.

    Args:
        z: M features ``z_BD``; those of missing modalities must be finite, and do not count.
        present_BM: bool.
        values: M prototype tables ``values_KD``.
        seen: M bool vectors ``seen_K``.
    """
    total_BK = torch.zeros_like(negative_distances(z[0], values[0]))
    known_BK = torch.zeros_like(total_BK, dtype=torch.bool)
    for m, (z_BD, values_KD, seen_K) in enumerate(zip(z, values, seen, strict=True)):
        here_B1 = present_BM[:, m : m + 1]
        total_BK = total_BK + torch.where(here_B1, log_votes(z_BD, values_KD, seen_K), 0.0)
        known_BK = known_BK | (here_B1 & seen_K)
    return torch.softmax(torch.where(known_BK, total_BK, _EXCLUDED), dim=1)


def expected(p_BK: Tensor, values_KD: Tensor, seen_K: Tensor) -> Tensor:
    """The posterior-weighted prototype ``z_BD`` of one modality, over the classes that have one in it.

    If none of the probable classes has one: the plain mean of all prototypes; zero if there are none.
    """
    seen = seen_K.to(p_BK.dtype)
    # The floor spreads a vanishing weight evenly and is far below any probability that matters.
    weight_BK = (p_BK + _EPSILON) * seen
    return (weight_BK / weight_BK.sum(dim=1, keepdim=True).clamp(min=_EPSILON / 2)) @ (
        values_KD * seen.unsqueeze(1)
    )


def completed(
    z: Sequence[Tensor],
    present_BM: Tensor,
    values: Sequence[Tensor],
    seen: Sequence[Tensor],
    p_BK: Tensor,
) -> list[Tensor]:
    """The M features, each missing one replaced by its prototypes' mean, weighted by class probabilities."""
    return [
        torch.where(present_BM[:, m : m + 1], z_BD, expected(p_BK, values_KD, seen_K))
        for m, (z_BD, values_KD, seen_K) in enumerate(zip(z, values, seen, strict=True))
    ]


def complete(
    z: Sequence[Tensor], present_BM: Tensor, values: Sequence[Tensor], seen: Sequence[Tensor]
) -> list[Tensor]:
    """The M features, each missing one replaced by its posterior-weighted prototype."""
    return completed(z, present_BM, values, seen, posterior(z, present_BM, values, seen))


def with_novel(logits_BK: Tensor, q_BK: Tensor, novel_K: Tensor) -> Tensor:
    """Class probabilities of a trained head and a nearest-prototype head beside it, (B, K).

    The head was never trained on a novel class, so its score of one means nothing. Novel classes get their
    posterior from the prototypes; the others share the rest by the head's softmax. If no class is novel, this
    is the head's softmax to the bit; if all are, the posterior.

    Args:
        logits_BK: the head's.
        q_BK: :func:`posterior`.
        novel_K: bool: has a prototype, and no device has trained on it.
    """
    p_BK = torch.softmax(torch.where(novel_K, _EXCLUDED, logits_BK), dim=1)
    taken_B1 = torch.where(novel_K, q_BK, 0.0).sum(dim=1, keepdim=True)
    return torch.where(novel_K, q_BK, p_BK * (1.0 - taken_B1).clamp(min=0.0))
