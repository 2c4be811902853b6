"""Scores of entities that have several embeddings: one distribution of answers from all. Imports torch.

Shapes: B queries, L candidates, V views (embeddings that are scored apart), D entity dim, C relation dim; x
entities or queries, as it comes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from models.knowledge_graph.networks.fusion import log_probabilities


def over_views(scored: Callable[[Tensor, Tensor], Tensor], e: Tensor, r: Tensor) -> Tensor:
    """Scores ``s_BL`` of a model of one view; of several, the logarithm of equation (1) with all views' mean.

    Args:
        scored: ``s_BL`` of one view's ``e_xD`` and ``r_xC``.
        e: ``e_xD`` (one view), or ``e_xVD``.
        r: ``r_xC``, or ``(x, V * C)``: each view's own, one after another.
    """
    if e.ndim == 2:  # noqa: PLR2004 - x, D
        return scored(e, r)
    own = r.view(r.shape[0], e.shape[1], -1)  # len() would fix the number of rows in an exported ONNX model
    parts = [scored(e[:, v], own[:, v]) for v in range(e.shape[1])]
    return parts[0] if len(parts) == 1 else log_probabilities(torch.stack(parts))
