"""The device's stored state, matched by key to a knowledge graph that grew. NumPy only.

Private tensors besides those of :mod:`models.knowledge_graph.data.embedding_tables`, all in the order of its
keys: ``own/structure`` (E, D), the device's own rows if it has a copy of the fleet's beside them;
``carry/rows`` (E, D), changes that were not sent yet; ``table/<name>/mean``, ``.../square`` and
``.../steps``, Adam's moments by row; and ``dense/<name>``, projections, fusion and imputer.

Shapes: E entities (or rows of another table), D columns; old ones are those of the round before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from models.contract import FloatArray, Tensors
from models.knowledge_graph.data.embedding_tables import (
    ENTITIES,
    ENTITY_KEYS,
    RELATION_KEYS,
    RELATIONS,
    keys_of,
    rows_by_key,
)
from models.knowledge_graph.data.graph import BoolArray, IntArray
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.data.keys import Keys

STRUCTURE: Final = "own/structure"
CARRY: Final = "carry/rows"
DENSE: Final = "dense/"
_TABLE: Final = "table/"


def places(old_E16: Keys, new_E16: Keys) -> IntArray:
    """For each new key its row among the old ones, -1 if it is new."""
    if np.array_equal(old_E16, new_E16):
        return np.arange(len(new_E16))
    at = rows_by_key(old_E16)
    return np.array([at.get(key.tobytes(), -1) for key in np.ascontiguousarray(new_E16)], np.int64)


@dataclass(frozen=True, eq=False)
class Moments:
    """Adam's, of a table: ``mean_ED``, ``square_ED`` and ``steps_E``."""

    mean_ED: FloatArray
    square_ED: FloatArray
    steps_E: IntArray

    def tensors(self, table: str) -> Tensors:
        """As private tensors."""
        start = f"{_TABLE}{table}"
        steps_E = self.steps_E.astype(np.float32)
        return {f"{start}/mean": self.mean_ED, f"{start}/square": self.square_ED, f"{start}/steps": steps_E}


class DeviceState:
    """Private tensors of the round before, in the order of this round's knowledge graph.

    Args:
        private: as the device kept them; what does not fit is as if it were not there.
        entity_E: this round's place of each entity among them.
        relation_X: likewise of relations, then of their inverses.
    """

    def __init__(self, private: Mapping[str, FloatArray], entity_E: IntArray, relation_X: IntArray) -> None:
        self._private = private
        self._entity_E, self._relation_X = entity_E, relation_X

    @classmethod
    def of(cls, private: Mapping[str, FloatArray], graph: KeyedGraph) -> Self:
        """Of a device's private tensors and its knowledge graph of this round."""
        entities, relations = (_keys(private, name) for name in (ENTITY_KEYS, RELATION_KEYS))
        if entities is None or relations is None:
            nothing = np.full(len(graph.entity_keys_E16), -1), np.full(2 * len(graph.relation_keys_R16), -1)
            return cls({}, *nothing)
        forth_R = places(relations, graph.relation_keys_R16)
        back_R = np.where(forth_R < 0, -1, forth_R + len(relations))
        entity_E = places(entities, graph.entity_keys_E16)
        return cls(private, entity_E, np.concatenate([forth_R, back_R]))

    @property
    def known_E(self) -> BoolArray:  # noqa: N802 - shape legend
        """Entities that the device had in the round before."""
        return self._entity_E >= 0

    def __contains__(self, name: str) -> bool:
        return name in self._private

    def entities(self, name: str, fill: FloatArray) -> FloatArray:
        """A table of entities, with ``fill``'s rows where it has none."""
        return self._table(name, self._entity_E, fill)

    def relations(self, fill_XC: FloatArray) -> FloatArray:
        """The relations' table, likewise."""
        return self._table(RELATIONS, self._relation_X, fill_XC)

    def embeddings(self, fill_EVD: FloatArray) -> FloatArray:
        """What the device predicted with, likewise."""
        return self._table(ENTITIES, self._entity_E, fill_EVD)

    def moments(self, table: str, shape: tuple[int, ...], *, relations: bool) -> Moments:
        """Of a table of this shape, of ``relations`` or of entities; zeros where there are none."""
        place = self._relation_X if relations else self._entity_E
        start, zeros_ED = f"{_TABLE}{table}", np.zeros(shape, np.float32)
        mean_ED = self._table(f"{start}/mean", place, zeros_ED)
        square_ED = np.maximum(self._table(f"{start}/square", place, zeros_ED), 0)
        steps_E = np.maximum(self._table(f"{start}/steps", place, zeros_ED[:, 0]), 0).astype(np.int64)
        return Moments(mean_ED, square_ED, steps_E)

    def dense(self) -> Tensors:
        """Projections, fusion and imputer, by their names."""
        return {
            name.removeprefix(DENSE): value for name, value in self._private.items() if name.startswith(DENSE)
        }

    def _table(self, name: str, place_E: IntArray, fill: FloatArray) -> FloatArray:
        old, out = self._private.get(name), fill.copy()
        if old is None or old.shape[1:] != fill.shape[1:] or not np.isfinite(old).all():
            return out
        if place_E.max(initial=-1) < len(old):
            out[place_E >= 0] = old[place_E[place_E >= 0]]
        return out


def _keys(private: Mapping[str, FloatArray], name: str) -> Keys | None:
    return keys_of(private[name]) if name in private else None
