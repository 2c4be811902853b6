"""The terms of equation (12) beside a device's own loss, and those of its baselines. Imports torch.

The terms themselves are in :mod:`models.knowledge_graph`. Shapes: B questions, L candidates (the answer
first, then negatives), U entities of a batch, V views, D numbers of an embedding.
"""

import torch
from torch import Tensor

from models.knowledge_graph.networks.fusion import log_probabilities
from models.knowledge_graph.training.distillation import (
    contrast,
    divergence,
    feature_distillation,
    logit_distillation,
    proximal,
)
from models.knowledge_graph.training.epoch import completion
from models.methods.mmfed3_hide import MmFed3Config


def dual(
    config: MmFed3Config, own_BL: Tensor, fleet_BL: Tensor, own_UVD: Tensor, fleet_UVD: Tensor
) -> Tensor:
    """Of (12): ``L_KGC^{s,c} + mu L_LD + eta L_FD``; with ``logits_way = "up"``, MMFedLU's one way of (10).

    Args:
        config: weights.
        own_BL: scores by the device's embeddings, imputed.
        fleet_BL: scores by its copy of the fleet's, with what modalities are there.
        own_UVD: those embeddings.
        fleet_UVD: likewise.
    """
    loss = completion(fleet_BL)
    if config.logits:
        own, fleet = log_probabilities(own_BL[None]), log_probabilities(fleet_BL[None])
        both = config.logits_way == "both"
        loss = loss + config.logits * (logit_distillation(own, fleet) if both else divergence(own, fleet))
    if config.feature:
        loss = loss + config.feature * feature_distillation(own_UVD, fleet_UVD)
    return loss


def towards(
    config: MmFed3Config, own_UVD: Tensor, fleet_UVD: Tensor, last_UVD: Tensor, known_U: Tensor
) -> Tensor:
    """MMFedProx's and MMFedEC's terms, each by its weight.

    Args:
        config: weights.
        own_UVD: the device's embeddings.
        fleet_UVD: those that the fleet's rows and projections gave when the round began.
        last_UVD: the device's at the end of its last round.
        known_U: bool; entities that it had then.
    """
    loss = torch.zeros(())
    if config.prox:
        loss = loss + config.prox * proximal(own_UVD, fleet_UVD)
    if config.contrast:
        term = contrast(own_UVD, fleet_UVD, last_UVD, config.temperature, known_U)
        loss = loss + config.contrast * term
    return loss
