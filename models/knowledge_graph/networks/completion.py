"""The deployed model of a knowledge graph: the best tails of questions, from tables that are its inputs.

It has no weights: each device feeds its own embeddings, so that one small ONNX model (``protocol.bundle``)
serves every device and every version of a task. Heads are asked for by inverse relations. Imports torch.

Shapes: B questions, E entities, R relations (X is 2 R), V views, D entity dim, C relation dim, K answers.
"""

import torch
from torch import Tensor, nn

from models.knowledge_graph.networks.multi_view import over_views
from models.knowledge_graph.networks.triple_scores import Score
from protocol.bundle import Completion


class Completer(nn.Module):
    """Ranks all entities of a table as tails.

    Args:
        score: f.
        views: V, embeddings of an entity that are scored apart.
        top_k: K.
    """

    def __init__(self, score: Score, views: int, top_k: int) -> None:
        super().__init__()
        self._score = score
        self.shape = Completion(
            top_k=top_k, views=views, entity_dim=score.dim, relation_dim=score.relation_dim
        )

    def scores(self, head_B: Tensor, relation_B: Tensor, e_EVD: Tensor, r_XC: Tensor) -> Tensor:
        """``s_BE`` of every entity; the arguments are those of :meth:`forward`."""
        return over_views(
            lambda e_ED, own_XC: self._score.score(
                self._score.queries(e_ED[head_B], own_XC[relation_B]), e_ED
            ),
            e_EVD,
            r_XC,
        )

    def forward(
        self, head_B: Tensor, relation_B: Tensor, e_EVD: Tensor, r_XC: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``tails_BK`` and ``scores_BK``, the highest first.

        With fewer than K entities the rest is -1, with float32's lowest number as its score.

        Args:
            head_B: int64, rows of ``e_EVD``.
            relation_B: int64, rows of ``r_XC``: the inverse of relation r is r + R.
            e_EVD: embeddings of all entities.
            r_XC: of all relations and, after them, their inverses, ``(2 R, V * C)``.
        """
        s_BE = self.scores(head_B, relation_B, e_EVD, r_XC)
        lowest = torch.finfo(torch.float32).min
        s_BL = nn.functional.pad(s_BE, (0, self.shape.top_k), value=lowest)
        score_BK, tail_BK = torch.topk(s_BL, self.shape.top_k, dim=1)
        return torch.where(tail_BK < e_EVD.shape[0], tail_BK, -1), score_BK
