"""A client's knowledge graph: entities, relations, facts, and features of some entities. NumPy only.

Shapes (all of ``models/knowledge_graph``): N triples, B batch, E entities, R relations, D entity dim, K
negatives, F feature dim, M modalities. Inverse relations (r + R) are added in training, not in the data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models.contract import FloatArray

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Names, facts about them, and features of some entities.

    Attributes:
        entities: names, each once; an entity's index is its place here.
        relations: names, each once.
        triples_N3: int64; head, relation, tail as indices.
        features: modality -> ``x_EF`` float32, a row for every entity; zeros where it is absent.
        present_EM: bool, which entities have the features; columns in the order of ``features``.

    Raises:
        ValueError: the parts do not fit together.
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    triples_N3: IntArray
    features: Mapping[str, FloatArray]
    present_EM: BoolArray

    def __post_init__(self) -> None:
        for what, names in (("entities", self.entities), ("relations", self.relations)):
            if len(set(names)) < len(names):
                raise ValueError(f"{what}: {len(names) - len(set(names))} names occur more than once")
        _check_triples(self.triples_N3, len(self.entities), len(self.relations))
        wanted = (len(self.entities), len(self.features))
        if self.present_EM.shape != wanted or self.present_EM.dtype != np.bool_:
            raise ValueError(
                f"present_EM is {self.present_EM.dtype} {self.present_EM.shape}, not bool {wanted}"
            )
        for m, (modality, x_EF) in enumerate(self.features.items()):
            _check_features(modality, x_EF, self.present_EM[:, m])

    def __len__(self) -> int:
        return len(self.triples_N3)

    @classmethod
    def bare(
        cls, entities: tuple[str, ...], relations: tuple[str, ...], triples_N3: IntArray
    ) -> "KnowledgeGraph":
        """A knowledge graph without features."""
        return cls(entities, relations, triples_N3, {}, np.zeros((len(entities), 0), np.bool_))

    @property
    def modalities(self) -> tuple[str, ...]:
        """The features' modalities, in the order of ``present_EM``'s columns."""
        return tuple(self.features)

    def with_triples(self, triples_N3: IntArray) -> "KnowledgeGraph":
        """The same entities, relations and features with other facts (such as a part of a split)."""
        return replace(self, triples_N3=triples_N3)

    def masked(self, keep_EM: BoolArray) -> "KnowledgeGraph":
        """The knowledge graph with the present features that ``keep_EM`` selects."""
        present_EM = self.present_EM & keep_EM
        features = {
            modality: np.where(present_EM[:, m, None], x_EF, np.float32(0))
            for m, (modality, x_EF) in enumerate(self.features.items())
        }
        return replace(self, features=features, present_EM=present_EM)


def _check_triples(triples_N3: IntArray, entities: int, relations: int) -> None:
    if triples_N3.ndim != 2 or triples_N3.shape[1] != 3 or triples_N3.dtype != np.int64:  # noqa: PLR2004 - h r t
        raise ValueError(f"triples_N3 is {triples_N3.dtype} {triples_N3.shape}, not int64 (N, 3)")
    if not len(triples_N3):
        return
    low, high = triples_N3.min(axis=0), triples_N3.max(axis=0)
    most = np.array([entities, relations, entities])
    if (low < 0).any() or (high >= most).any():
        raise ValueError(
            f"triples_N3 has indices {low.tolist()} to {high.tolist()} among {entities} entities and "
            f"{relations} relations"
        )


def _check_features(modality: str, x_EF: FloatArray, present_E: BoolArray) -> None:
    if x_EF.ndim != 2 or len(x_EF) != len(present_E) or x_EF.dtype != np.float32:  # noqa: PLR2004 - E, F
        raise ValueError(
            f"features of {modality!r} are {x_EF.dtype} {x_EF.shape}, not float32 ({len(present_E)}, F)"
        )
    if not np.isfinite(x_EF).all():
        raise ValueError(f"features of {modality!r} hold NaN or infinity")
    if x_EF[~present_E].any():
        raise ValueError(f"features of {modality!r} are not zero where they are absent")
