"""What the loaders of graphs give: all facts in one graph, and where the published parts of them end."""

from dataclasses import dataclass

import numpy as np

from models.knowledge_graph.data.graph import IntArray, KnowledgeGraph


@dataclass(frozen=True, eq=False)
class KnowledgeGraphSet:
    """A published graph.

    Attributes:
        graph: its facts stand in the order train, validation, test.
        train: how many facts are in the published training part.
        valid: in the published validation part; the rest is the published test part.
        titles: a name for people of each entity, which two may share; ``graph.entities`` are the ids.
    """

    graph: KnowledgeGraph
    train: int
    valid: int
    titles: tuple[str, ...]

    @property
    def parts(self) -> tuple[IntArray, IntArray, IntArray]:
        """The published training, validation and test facts."""
        train_N3, valid_N3, test_N3 = np.split(self.graph.triples_N3, [self.train, self.train + self.valid])
        return train_N3, valid_N3, test_N3
