"""A device's round: from the fleet's rows and what it kept, to what it sends and keeps. Imports torch.

Shapes: E entities, D their dim, V views, C relation dim, R relations (X is 2 R: each, then each inverse).
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch

from models.contract import Blobs, ClientContext, FloatArray, LocalResult, Tensors
from models.knowledge_graph.data import keys as hashes
from models.knowledge_graph.data.embedding_tables import Tables
from models.knowledge_graph.data.initial_embeddings import initial_rows
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.networks.sparse_embedding import EmbeddingRows
from models.methods.mmfed3_hide import MmFed3Config, config_of
from models.methods.mmfed3_hide.device_state import CARRY, DENSE, STRUCTURE, DeviceState, Moments
from models.methods.mmfed3_hide.embedding_sides import About
from models.methods.mmfed3_hide.evaluation import judged, set_aside, some
from models.methods.mmfed3_hide.local_training import LocalTraining, Start
from models.methods.mmfed3_hide.messages import (
    DELTA,
    MOST_WEIGHT,
    base_keys,
    projection_blob,
    projection_name,
    rows_blob,
    value_name,
)
from models.methods.mmfed3_hide.row_selection import Packed, packed
from models.methods.mmfed3_hide.training_config import in_round, score_of, views_of
from models.seeds import derive_seed
from models.training import adam_state, local
from protocol.frames.tensors import Codec

_FLEET: Final = "fleet"
_OWN: Final = "own"
_RELATIONS: Final = "relations"
_RUN: Final = "dense"
"""Under this name all dense parameters' moments are kept."""
_TRAVELS: Final = "fleet.projections."


class Round:
    """One device's round.

    Args:
        context: task, device, round and seed.
        graph: the device's.
        state: the blobs on its route.
        private: what it kept.
    """

    def __init__(
        self, context: ClientContext, graph: KeyedGraph, state: Blobs, private: Mapping[str, FloatArray]
    ) -> None:
        self._task, self._graph, self._state, self._private = context.task, graph, state, private
        self._every, self._round = config_of(context.task), context.round
        self._config = in_round(self._every, context.round)
        self._generator = local.start_deterministic(derive_seed(context.seed, context.device, context.round))
        self._lr = local.learning_rate(
            self._every.lr, self._every.lr_decay, self._every.lr_min, context.round
        )
        self._kept = DeviceState.of(private, graph)
        self._base_16 = base_keys(state, context.device)
        self._base_ED = self._base(context.device)
        self._start = self._started()
        self._training = LocalTraining(
            self._config, About.of(graph, reads=self._reads), self._start, self._generator
        )

    @property
    def _reads(self) -> bool:
        return self._config.fusion != "structure"

    def _base(self, device: str) -> FloatArray:
        """The base's rows, in the knowledge graph's order; first values of what it has no row of."""
        keys_E16 = self._graph.entity_keys_E16
        base_ED = initial_rows(self._task.seed, keys_E16, self._config.dim, self._config.span)
        if len(self._base_16):
            row_E = hashes.rows(self._base_16, keys_E16)
            values = self._state[rows_blob(device)][value_name(device)]
            base_ED[row_E >= 0] = values[row_E[row_E >= 0]]
        return base_ED

    def _started(self) -> Start:
        """Tables, with the moments that were kept."""
        base_ED, config, kept = self._base_ED, self._config, self._kept
        start_ED = base_ED + kept.entities(CARRY, np.zeros_like(base_ED))
        own = None
        if config.dual:
            # at first a copy of the fleet's, moments and all
            table = _OWN if STRUCTURE in kept else _FLEET
            own = self._rows(kept.entities(STRUCTURE, start_ED), table)
        columns = score_of(config).relation_dim * self._views(config)
        relations = self._rows(self._relations()[:, :columns], _RELATIONS)
        last_EVD = np.zeros((len(base_ED), self._views(self._every), config.dim), np.float32)
        last = torch.from_numpy(kept.embeddings(last_EVD)) if config.contrast else torch.zeros(len(base_ED))
        return Start(self._rows(start_ED, _FLEET), own, relations, last, torch.from_numpy(kept.known_E))

    def _rows(self, value: FloatArray, table: str) -> EmbeddingRows:
        rows = EmbeddingRows(torch.tensor(value), self._lr)
        if self._config.keep_moments:
            of = self._kept.moments(table, value.shape, relations=table == _RELATIONS)
            rows.resume(*map(torch.from_numpy, (of.mean_ED, of.square_ED, of.steps_E)))
        return rows

    def _views(self, config: MmFed3Config) -> int:
        return views_of(config, len(self._graph.features))

    def _relations(self) -> FloatArray:
        """``r_XC`` of all views: what was kept, else values that follow from the relations' keys."""
        shape = self._views(self._every), 2, score_of(self._every).relation_dim
        keys_R16 = self._graph.relation_keys_R16
        made = initial_rows(self._task.seed, keys_R16, math.prod(shape), self._config.span)
        # view by view: the first one begins alike, however many there are
        forth_back = made.reshape(-1, *shape).transpose(2, 0, 1, 3).reshape(2 * len(keys_R16), -1)
        return self._kept.relations(forth_back)

    def run(self) -> LocalResult:
        """Train, judge, and choose what travels.

        Raises:
            FloatingPointError: the loss, or an embedding that travels, is not finite.
        """
        every, aside_N = self._every, set_aside(self._graph, self._every.validation)
        net, relations = self._training, len(self._graph.relation_keys_R16)
        self._load()
        dense_lr = every.dense_lr * self._lr / every.lr
        adam = local.Adam(net.dense.parameters(), dense_lr, every.dense_decay) if net.size else None
        if adam is not None and every.keep_moments:
            adam_state.resume(adam, {_RUN: net.size}, self._private)
        triples_N3 = torch.from_numpy(self._graph.triples_N3[~aside_N])
        epochs = list(net.run(triples_N3, relations, adam))
        own = self._tables()
        metrics = {"loss": epochs[-1].loss, "beside": epochs[-1].beside, "lr": self._lr}
        metrics |= {"triples": float(len(triples_N3)), "entities": float(len(self._base_ED))}
        asked_N3 = some(self._graph, aside_N, every.judged)
        if len(asked_N3):
            found = judged(every, own, asked_N3, [self._graph.triples_N3])
            metrics |= {"mrr": found.mrr, "hits1": found.hits_1, "hits3": found.hits_3}
            metrics |= {"hits10": found.hits_10, "judged": float(len(asked_N3))}
        sending = packed(
            self._base_16,
            self._graph.entity_keys_E16,
            self._change(),
            every.rows_share,
            self._task.uplink,
            first=self._round == 1,
        )
        tensors = sending.sent.tensors()
        metrics["sent"] = float(len(sending.sent.delta_mD))
        return LocalResult(
            tensors=tensors | self._projections(),
            codecs={
                name: Codec(self._task.uplink.codec) if name == DELTA else Codec.UINT8 for name in tensors
            },
            weight=min(len(self._graph), MOST_WEIGHT),
            metrics=metrics,
            private=own.tensors() | self._keeping(sending, adam),
        )

    def _change(self) -> FloatArray:
        """Of the fleet's rows; the last step of all may have gone astray, where no loss shows it."""
        change_ED: FloatArray = self._start.fleet.value_ED.numpy() - self._base_ED
        if not np.isfinite(change_ED).all():
            raise FloatingPointError("an embedding is not finite: lower the learning rate")
        return change_ED

    def _load(self) -> None:
        """The networks' values: the fleet's projections, and what was kept of all else."""
        dense = self._training.dense
        values, kept = dense.state_dict(), self._kept.dense()
        for m, name in enumerate(self._modalities()):
            weight = self._state.get(projection_blob(name), {}).get(projection_name(name))
            for side in (_FLEET, _OWN):
                if weight is not None and f"{side}.projections.weights.{m}.weight" in values:
                    kept.setdefault(f"{side}.projections.weights.{m}.weight", weight)
        for name, value in kept.items():
            if name in values and values[name].shape == value.shape and np.isfinite(value).all():
                values[name] = torch.tensor(value)
        dense.load_state_dict(values)

    def _modalities(self) -> tuple[str, ...]:
        """That this round reads."""
        return tuple(self._graph.features) if self._reads else ()

    def _projections(self) -> Tensors:
        """Changes of the projections, of modalities that some entity has."""
        found: Tensors = {}
        for m, name in enumerate(self._modalities()):
            base = self._state.get(projection_blob(name))
            if base is not None and self._graph.present_EM[:, m].any():
                tensor = projection_name(name)
                layer = self._training.fleet.projections.weights[m]
                weight = layer.get_parameter("weight").detach().numpy()
                found[tensor] = weight - base[tensor]
        return found

    def _tables(self) -> Tables:
        """What the device predicts with; in rounds of structure alone all views are that."""
        config, net, graph = self._config, self._training, self._graph
        copies = self._views(self._every) // self._views(config)
        return Tables(
            np.tile(net.embedded().numpy(), (1, copies, 1)),
            graph.entity_keys_E16,
            np.tile(self._start.relations.value_ED.numpy(), (1, copies)),
            graph.relation_keys_R16,
        )

    def _keeping(self, sending: Packed, adam: local.Adam | None) -> Tensors:
        """Private tensors besides the tables."""
        net, found = self._training, {CARRY: sending.carry_ED}
        each = {_FLEET: self._start.fleet, _RELATIONS: self._start.relations}
        if self._start.own is not None:
            found[STRUCTURE] = self._start.own.value_ED.numpy()
            each[_OWN] = self._start.own
        for name, value in net.dense.state_dict().items():
            if not name.startswith(_TRAVELS):
                found[f"{DENSE}{name}"] = value.numpy()
        if self._config.keep_moments:
            for table, rows in each.items():
                of = Moments(rows.mean_ED.numpy(), rows.square_ED.numpy(), rows.steps_E.numpy())
                found |= of.tensors(table)
            if adam is not None:
                found |= adam_state.kept(adam, {_RUN: net.size}, {})
        return found
