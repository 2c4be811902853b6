"""A device's own prediction tables, by key. They never leave it. Torch-free.

A knowledge-graph method stores them as private tensors (``LocalResult.private``); the agent feeds them to the
exported model (``protocol.bundle.Completion``).

Shapes: E entities, V views, D entity dim, R relations (X is 2 R: each, then each inverse), C relation dim.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray, Tensors
from models.knowledge_graph.data.keys import KEY_BYTES, Keys

ENTITIES: Final = "own/entities"
"""(E, V, D)."""
ENTITY_KEYS: Final = "own/entity_keys"
"""(E, 16), whole numbers 0 to 255."""
RELATIONS: Final = "own/relations"
"""(2 R, V * C)."""
RELATION_KEYS: Final = "own/relation_keys"
"""(R, 16), whole numbers 0 to 255."""
NAMES: Final = (ENTITIES, ENTITY_KEYS, RELATIONS, RELATION_KEYS)


@dataclass(frozen=True, eq=False)
class Tables:
    """A device's embeddings.

    Attributes:
        entities_EVD: float32, fused and imputed.
        entity_keys_E16: uint8.
        relations_XC: float32, ``(2 R, V * C)``; the inverse of relation r is r + R.
        relation_keys_R16: uint8.
    """

    entities_EVD: FloatArray
    entity_keys_E16: Keys
    relations_XC: FloatArray
    relation_keys_R16: Keys

    def tensors(self) -> Tensors:
        """As private tensors."""
        return {
            ENTITIES: self.entities_EVD,
            ENTITY_KEYS: self.entity_keys_E16.astype(np.float32),
            RELATIONS: self.relations_XC,
            RELATION_KEYS: self.relation_keys_R16.astype(np.float32),
        }

    def entity(self, key: bytes) -> int | None:
        """Row of an entity; None if there is none."""
        return self._entity_rows.get(key)

    def relation(self, key: bytes, *, inverse: bool = False) -> int | None:
        """Row of a relation, or of its inverse; None if there is none."""
        row = self._relation_rows.get(key)
        return row if row is None or not inverse else row + len(self.relation_keys_R16)

    @cached_property
    def _entity_rows(self) -> dict[bytes, int]:
        return rows_by_key(self.entity_keys_E16)

    @cached_property
    def _relation_rows(self) -> dict[bytes, int]:
        return rows_by_key(self.relation_keys_R16)


def tables(private: Mapping[str, FloatArray]) -> Tables | None:
    """The tables among a device's private tensors; None if they are missing or do not fit together."""
    if not all(name in private for name in NAMES):
        return None
    e_EVD, r_XC = private[ENTITIES], private[RELATIONS]
    entity_keys, relation_keys = keys_of(private[ENTITY_KEYS]), keys_of(private[RELATION_KEYS])
    if entity_keys is None or relation_keys is None or e_EVD.ndim != 3 or r_XC.ndim != 2:  # noqa: PLR2004 - E, V, D
        return None
    if len(e_EVD) != len(entity_keys) or len(r_XC) != 2 * len(relation_keys):
        return None
    if not (np.isfinite(e_EVD).all() and np.isfinite(r_XC).all()):
        return None
    return Tables(e_EVD, entity_keys, r_XC, relation_keys)


def rows_by_key(keys_E16: Keys) -> dict[bytes, int]:
    """Key -> row."""
    return {key.tobytes(): row for row, key in enumerate(np.ascontiguousarray(keys_E16))}


def keys_of(values_E16: NDArray[np.float32]) -> Keys | None:
    """Keys that were sent or stored as numbers, uint8; None if they are none."""
    if values_E16.ndim != 2 or values_E16.shape[1] != KEY_BYTES:  # noqa: PLR2004 - E, 16
        return None
    with np.errstate(invalid="ignore"):
        keys_E16 = np.clip(np.nan_to_num(values_E16), 0, 255).astype(np.uint8)
    return keys_E16 if np.array_equal(keys_E16, values_E16) else None
