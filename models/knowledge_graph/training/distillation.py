"""Distillation between a client and the fleet's model (section IV-D, appendix C-A). Imports torch.

Shapes: B questions or entities, L candidates (the answer first, then its negatives), V views, D numbers of an
embedding.
"""

import torch
from torch import Tensor
from torch.nn import functional


def divergence(teacher_BL: Tensor, student_BL: Tensor, *, teaches_only: bool = True) -> Tensor:
    """``KL(teacher || student)``, mean over questions; 0 of none. MMFedLU: of client and fleet alone.

    Args:
        teacher_BL: log-probabilities of the candidates; ``-inf`` for one that does not count.
        student_BL: likewise, of the same candidates.
        teaches_only: no gradient flows into the teacher. False: it moves towards the student too, as the
            formula alone implies.
    """
    if teaches_only:
        teacher_BL = teacher_BL.detach()
    out_BL = teacher_BL == -torch.inf  # 0 * (-inf - -inf) would be NaN
    log_p_BL, log_q_BL = teacher_BL.masked_fill(out_BL, 0.0), student_BL.masked_fill(out_BL, 0.0)
    terms_BL = (log_p_BL.exp() * (log_p_BL - log_q_BL)).masked_fill(out_BL, 0.0)
    return terms_BL.sum() / max(1, len(teacher_BL))


def logit_distillation(client_BL: Tensor, server_BL: Tensor, *, teaches_only: bool = True) -> Tensor:
    """Equation (10), L_c2s + L_s2c: each learns from the other, mean over questions.

    Args:
        client_BL: log-probabilities p^c, of imputed embeddings.
        server_BL: p^{s,c}, of the fleet's embeddings with present modalities only.
        teaches_only: as in :func:`divergence`, both ways.
    """
    forth = divergence(client_BL, server_BL, teaches_only=teaches_only)
    return forth + divergence(server_BL, client_BL, teaches_only=teaches_only)


def feature_distillation(client_BVD: Tensor, server_BVD: Tensor) -> Tensor:
    """Equation (11), ``||Ehat^c - E^{s,c}||^2``, mean over entities; 0 of none. Gradients flow into both."""
    return torch.square(client_BVD - server_BVD).sum() / max(1, len(client_BVD))


def proximal(client_BVD: Tensor, server_BVD: Tensor) -> Tensor:
    """MMFedProx: as equation (11), but towards the fleet's old embeddings; no gradient flows into those."""
    return feature_distillation(client_BVD, server_BVD.detach())


def contrast(
    client_BVD: Tensor,
    server_BVD: Tensor,
    last_BVD: Tensor,
    temperature: float,
    known_B: Tensor | None = None,
) -> Tensor:
    """MMFedEC: an entity is nearer to the fleet's embedding than to its own of the round before.

    ``-log(exp(s(c, s) / tau) / (exp(s(c, s) / tau) + exp(s(c, last) / tau)))`` with s the cosine over all
    views; mean over entities, 0 of none. Gradients flow into ``client_BVD`` alone.

    Args:
        client_BVD: embeddings of this round.
        server_BVD: the fleet's.
        last_BVD: the client's at the end of its last round.
        temperature: tau.
        known_B: bool; entities that had an embedding then. None: all. Of others, ``last_BVD`` is not read.
    """
    if known_B is not None:
        client_BVD, server_BVD, last_BVD = (x[known_B] for x in (client_BVD, server_BVD, last_BVD))
    unit = [functional.normalize(x.flatten(1)) for x in (client_BVD, server_BVD.detach(), last_BVD.detach())]
    near_B, far_B = ((unit[0] * other).sum(dim=1) for other in unit[1:])
    return functional.softplus((far_B - near_B) / temperature).sum() / max(1, len(near_B))
