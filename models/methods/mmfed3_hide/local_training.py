"""What a device trains in one round: equation (12), or what of it the options ask for. Imports torch.

Shapes: U entities of a batch, B questions, E entities, D their dim, V views, C relation dim, X relations and
their inverses (2 R), L scores of a question.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.knowledge_graph.networks.imputation import IMPUTERS, Imputer
from models.knowledge_graph.networks.modality_vectors import Projections
from models.knowledge_graph.networks.sparse_embedding import Descent, EmbeddingRows
from models.knowledge_graph.training.epoch import Epoch, TripleBatch, epoch
from models.knowledge_graph.training.known_answers import KnownAnswers, questions
from models.methods.mmfed3_hide import MmFed3Config, losses
from models.methods.mmfed3_hide.embedding_sides import About, Side
from models.methods.mmfed3_hide.training_config import draw_of, fusion_of, score_of, settings_of
from models.training.local import Adam

_CHUNK = 4096
"""Entities that are embedded at a time, before and after training."""


@dataclass(frozen=True, eq=False)
class Start:
    """Where a round begins.

    Attributes:
        fleet: structural rows as the fleet and the carry have them; what travels.
        own: the device's own rows, or None where these are the fleet's.
        relations: C columns a view.
        last_EVD: what the device predicted with after its last round.
        had_E: bool; entities that it had then.
    """

    fleet: EmbeddingRows
    own: EmbeddingRows | None
    relations: EmbeddingRows
    last_EVD: Tensor
    had_E: Tensor


class LocalTraining:
    """One device's model and how it learns.

    Args:
        config: of this round (:func:`models.methods.mmfed3_hide.training_config.in_round`).
        about: its knowledge graph's entities.
        start: tables, trained in place.
        generator: of the round; first values of networks come from torch's own, which is seeded, too.

    Attributes:
        fleet: the side that travels.
        own: the side that predicts; with ``dual`` another one.
        dense: all parameters that are no tables.
    """

    def __init__(self, config: MmFed3Config, about: About, start: Start, generator: torch.Generator) -> None:
        self._config, self._about, self._start, self._generator = config, about, start, generator
        self._score = score_of(config)
        self.fleet = self._side(start.fleet)
        self.own = self.fleet if start.own is None else self._side(start.own)
        self._imputer = self._imputing()
        each = {"fleet": self.fleet, "own": self.own, "imputer": self._imputer}
        if self.own is self.fleet:
            del each["own"]
        self.dense = nn.ModuleDict({name: part for name, part in each.items() if part is not None})
        self._still_EVD: Tensor | None = None
        self._h_UPD = torch.zeros(0)

    def _side(self, structure: EmbeddingRows) -> Side:
        sizes = {name: x_EF.shape[1] for name, x_EF in self._about.features.items()}
        phi = fusion_of(self._config, 1 + len(sizes))
        return Side(structure, Projections(sizes, self._config.dim), phi, self._about)

    def _imputing(self) -> Imputer | None:
        parts = 1 + len(self._about.features)
        make = IMPUTERS.get(self._config.imputer) if parts > 1 else None
        return None if make is None else make(parts * self._config.dim, settings_of(self._config))

    @property
    def size(self) -> int:
        """Values of all dense parameters."""
        return sum(p.numel() for p in self.dense.parameters())

    def run(self, triples_N3: Tensor, relations: int, adam: Adam | None) -> Iterator[Epoch]:
        """Epoch after epoch, as they are asked for.

        Args:
            triples_N3: what trains.
            relations: R.
            adam: of the dense parameters; None where there are none.

        Raises:
            FloatingPointError: the loss is not finite.
        """
        config, start = self._config, self._start
        asked_Q3 = questions(triples_N3, relations)
        draw = draw_of(config, KnownAnswers([asked_Q3], len(start.fleet), relations))
        own = () if start.own is None else (start.own,)
        descent = Descent(start.fleet, *own, start.relations, dense=adam)
        more = start.own is not None or self._imputer is not None
        if config.prox or config.contrast:
            self._still_EVD, more = self._every(imputed=False), True
        for _ in range(config.epochs):
            yield epoch(
                asked_Q3,
                self._embed,
                start.relations,
                score=self._score,
                draw=draw,
                descent=descent,
                generator=self._generator,
                size=config.batch,
                beside=self._beside if more else None,
            )

    def _embed(self, rows_U: Tensor) -> Tensor:
        self._h_UPD = self.own.parts(self.own.structure.take(rows_U), rows_U)
        return self.own.imputed(self._h_UPD, rows_U, self._imputer, self._generator)

    def _beside(self, batch: TripleBatch, own_UVD: Tensor, r_BC: Tensor, own_BL: Tensor) -> Tensor:
        """Equation (12) without its first term."""
        config, rows_U, terms = self._config, batch.rows_U, [torch.zeros(())]
        if self._imputer is not None and config.impute:
            made = self.own.imputing(self._h_UPD, rows_U, self._imputer, config.hide_share, self._generator)
            terms.append(config.impute * made)
        if self._start.own is not None:
            fleet_UPD = self.fleet.parts(self._start.fleet.take(rows_U), rows_U)
            fleet_UVD = self.fleet.fused(fleet_UPD, rows_U)
            fleet_BL = batch.logits(self._score, fleet_UVD, r_BC)
            terms.append(losses.dual(config, own_BL, fleet_BL, own_UVD, fleet_UVD))
        if self._still_EVD is not None:
            last = self._start.last_EVD[rows_U], self._start.had_E[rows_U]
            terms.append(losses.towards(config, own_UVD, self._still_EVD[rows_U], *last))
        return torch.stack(terms).sum()

    def embedded(self) -> Tensor:
        """E_hat of all entities, ``e_EVD``: what the device predicts with."""
        return self._every(imputed=True)

    def _every(self, *, imputed: bool) -> Tensor:
        parts = []
        with torch.no_grad():
            for rows_U in torch.split(torch.arange(len(self.own.structure)), _CHUNK):
                h_UPD = self.own.parts(self.own.structure.value_ED[rows_U], rows_U)
                imputer = self._imputer if imputed else None
                parts.append(self.own.imputed(h_UPD, rows_U, imputer, self._generator))
        return torch.cat(parts)
