"""Options of a task on knowledge graphs: facts about entities instead of windows of streams.

Each device has its own knowledge graph: triples (head, relation, tail), and features of some entities by
modality. The model predicts the tail of (head, relation, ?). Devices may share entities; relations and
features stay on the device.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from protocol.base import Wire

FeatureName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")]


class Features(Wire):
    """One modality of entities: a vector of ``dim`` numbers for each entity that has it."""

    name: FeatureName
    dim: Annotated[int, Field(ge=1, le=4096)]


class KnowledgeGraphTask(Wire):
    """``[graph]`` of a task file. Bounds apply to one device."""

    features: Annotated[tuple[Features, ...], Field(max_length=15)] = ()
    """Modalities of entities, in the order of columns in every availability mask; a device may lack any."""
    top_k: Annotated[int, Field(ge=1, le=1000)] = 10
    """Number of tails in an answer of the deployed model."""
    max_entities: Annotated[int, Field(ge=2, le=1_000_000)] = 50_000
    max_relations: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    max_triples: Annotated[int, Field(ge=1, le=50_000_000)] = 5_000_000

    @model_validator(mode="after")
    def _names_are_different(self) -> Self:
        names = [feature.name for feature in self.features]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"features: {twice[0]!r} is named twice")
        return self
