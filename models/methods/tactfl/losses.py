"""The device's equations, one pure function each; the coordinator's are in ``similarity.py`` (NumPy).

Imports torch. Shapes: S and R segments of two modalities (or of one, twice), D features. A segment is the
part ``[start, end)`` of its window, in seconds.
"""

import torch
from torch import Tensor
from torch.nn import functional


def overlaps(span_S2: Tensor, span_R2: Tensor, window_S: Tensor, window_R: Tensor) -> Tensor:
    """Temporal intersection over union (section 3.2): shared time over covered time, ``tiou_SR``.

    Args:
        span_S2: start and end, in seconds from the start of the segment's window; no segment is empty.
        span_R2: likewise.
        window_S: the segment's window; segments of different windows share nothing.
        window_R: likewise.
    """
    start_SR = torch.maximum(span_S2[:, None, 0], span_R2[None, :, 0])
    end_SR = torch.minimum(span_S2[:, None, 1], span_R2[None, :, 1])
    shared_SR = (end_SR - start_SR).clamp(min=0)
    length_S, length_R = (span[:, 1] - span[:, 0] for span in (span_S2, span_R2))
    tiou_SR = shared_SR / (length_S[:, None] + length_R[None, :] - shared_SR)
    return torch.where(window_S[:, None] == window_R[None, :], tiou_SR, 0.0)


def soft_targets(tiou_SR: Tensor) -> Tensor:
    """P (section 3.2): each row of tIoU over its sum; a row of zeros stays one."""
    total_S1 = tiou_SR.sum(dim=1, keepdim=True)
    return tiou_SR / torch.where(total_S1 > 0, total_S1, 1.0)


def cosines(z_SD: Tensor, z_RD: Tensor) -> Tensor:
    """Equation (2), ``cos_SR``; 0 for a feature of zeros."""
    return functional.normalize(z_SD, dim=1) @ functional.normalize(z_RD, dim=1).T


def contrast(cos_SR: Tensor, target_SR: Tensor, temperature: float, apart_SR: Tensor | None = None) -> Tensor:
    """Equation (1), mean over the segments that have a counterpart; 0 if none has.

    Args:
        cos_SR: equation (2).
        target_SR: P; rows of zeros have no counterpart, and do not count in the mean.
        temperature: tau.
        apart_SR: bool; pairs that are not compared: in no softmax, with a target of 0. At least one of each
            row is.
    """
    scores_SR = cos_SR / temperature
    if apart_SR is not None:
        scores_SR = scores_SR.masked_fill(apart_SR, -torch.inf)
    log_q_SR = torch.log_softmax(scores_SR, dim=1)
    if apart_SR is not None:
        log_q_SR = log_q_SR.masked_fill(apart_SR, 0.0)  # 0 * -inf would be NaN
    loss_S = -(target_SR * log_q_SR).sum(dim=1)
    return loss_S.sum() / (target_SR > 0).any(dim=1).sum().clamp(min=1)


def symmetric(cos_SR: Tensor, tiou_SR: Tensor, temperature: float, apart_SR: Tensor | None = None) -> Tensor:
    """Equation (1) from both modalities: the mean of the two directions, each with its own P.

    Args:
        cos_SR: equation (2).
        tiou_SR: of the same pairs.
        temperature: tau.
        apart_SR: bool; pairs that are not compared, as in :func:`contrast`.
    """
    apart_RS = None
    if apart_SR is not None:
        tiou_SR = tiou_SR.masked_fill(apart_SR, 0.0)
        apart_RS = apart_SR.T
    forth = contrast(cos_SR, soft_targets(tiou_SR).to(cos_SR.dtype), temperature, apart_SR)
    back = contrast(cos_SR.T, soft_targets(tiou_SR.T).to(cos_SR.dtype), temperature, apart_RS)
    return (forth + back) / 2
