"""A device's own embeddings of entities, and its copy of the fleet's. Imports torch.

Shapes: U entities of a batch, E of the knowledge graph, M modalities, P parts (structure, then modalities), V
views, D entity dim.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.networks.fusion import Fusion
from models.knowledge_graph.networks.imputation import Imputer, hidden
from models.knowledge_graph.networks.modality_vectors import Projections, with_structure
from models.knowledge_graph.networks.sparse_embedding import EmbeddingRows


@dataclass(frozen=True, eq=False)
class About:
    """What is known of a knowledge graph's entities.

    Attributes:
        features: modality -> ``x_EF``.
        present_EM: bool.
        here_P: bool; parts that some entity has. Nothing could say how another would look.
    """

    features: Mapping[str, Tensor]
    present_EM: Tensor
    here_P: Tensor

    @classmethod
    def of(cls, graph: KeyedGraph, *, reads: bool) -> "About":
        """Of a knowledge graph; nothing where a fusion ``reads`` no features."""
        features = {name: torch.tensor(x_EF) for name, x_EF in graph.features.items()} if reads else {}
        present_EM = torch.tensor(graph.present_EM[:, : len(features)])
        return cls(features, present_EM, with_structure(present_EM.any(dim=0)[None])[0])

    def present(self, rows_U: Tensor) -> Tensor:
        """``present_UP``."""
        return with_structure(self.present_EM[rows_U])


class Side(nn.Module):
    """Structural rows, projections and fusion.

    Args:
        structure: rows; not among the module's parameters.
        projections: of the features.
        phi: the fusion.
        about: the knowledge graph's entities.
    """

    def __init__(self, structure: EmbeddingRows, projections: Projections, phi: Fusion, about: About) -> None:
        super().__init__()
        self.structure, self._about = structure, about
        self.projections, self.phi = projections, phi

    def parts(self, s_UD: Tensor, rows_U: Tensor) -> Tensor:
        """H, ``h_UPD``, of these structural embeddings."""
        features = {name: x_EF[rows_U] for name, x_EF in self._about.features.items()}
        h_UPD: Tensor = self.projections(s_UD, features, self._about.present_EM[rows_U])
        return h_UPD

    def fused(self, h_UPD: Tensor, rows_U: Tensor) -> Tensor:
        """E of what is there, ``e_UVD``."""
        e_UVD: Tensor = self.phi(h_UPD, self._about.present(rows_U))
        return e_UVD

    def imputed(
        self, h_UPD: Tensor, rows_U: Tensor, imputer: Imputer | None, generator: torch.Generator
    ) -> Tensor:
        """E_hat, ``e_UVD``: with what an imputer makes of parts that are lacking."""
        if imputer is None:
            return self.fused(h_UPD, rows_U)
        here_UP = self._about.here_P.expand(len(rows_U), -1)
        full_UPD = imputer(h_UPD, self._about.present(rows_U) | ~here_UP, generator)
        e_UVD: Tensor = self.phi(full_UPD, here_UP)
        return e_UVD

    def imputing(
        self, h_UPD: Tensor, rows_U: Tensor, imputer: Imputer, share: float, generator: torch.Generator
    ) -> Tensor:
        """Equations (7, 8), with a share of modalities hidden."""
        present_UP = self._about.present(rows_U)
        return imputer.loss(h_UPD, present_UP, generator, hidden(present_UP, share, generator))
