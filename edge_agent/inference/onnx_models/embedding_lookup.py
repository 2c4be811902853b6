"""Questions by key -> the best answers by key, from the device's own embeddings. Synchronous.

This part runs in the model's process, beside the tables that training wrote to disk; it knows no names.
``edge_agent.inference.question_answers`` has the other part.

Shapes: B questions, N of them with rows in the tables, K answers.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.inference.onnx_models.completion_model import CompletionModel
from edge_agent.storage.private_tensors import PrivateTensors
from models.contract import FloatArray
from models.knowledge_graph.data import embedding_tables
from models.knowledge_graph.data.embedding_tables import Tables
from models.knowledge_graph.data.graph import BoolArray, IntArray
from models.knowledge_graph.data.keys import KEY_BYTES, Keys
from protocol.errors import Misconfigured

NO_TABLES: Final = "this device has no embeddings yet: they come with its first round of training"
HAS_ROWS, NEW_ENTITY, NEW_RELATION = range(3)
"""Values of :attr:`LookupResult.state_B`: the tables have a question's entity and relation, or lack one of
them."""


@dataclass(frozen=True)
class KeyedQuestions:
    """Questions by key.

    Attributes:
        entity_B16: key of the entity that is asked about.
        relation_B16: key of the relation.
        inverse_B: whether the entity is the tail, and heads are asked for.
    """

    entity_B16: Keys
    relation_B16: Keys
    inverse_B: BoolArray


@dataclass(frozen=True)
class LookupResult:
    """Answers by key.

    Attributes:
        why: why there are none at all; empty if there may be some.
        state_B: of each question.
        tails_NK: rows of the entities, for questions with :data:`HAS_ROWS`; -1 if there are fewer.
        keys_NK16: of those rows.
        scores_NK: the highest first.
    """

    why: str
    state_B: NDArray[np.uint8]
    tails_NK: IntArray
    keys_NK16: Keys
    scores_NK: FloatArray


class TableReader:
    """Answers from the embeddings on the disk. For one thread.

    Args:
        private: written by training.
    """

    def __init__(self, private: PrivateTensors) -> None:
        self._private = private
        self._read: tuple[object, Tables | None, str] = (None, None, NO_TABLES)

    def answer(self, model: CompletionModel, task: str, asked: KeyedQuestions) -> LookupResult:
        """Answer questions about a task.

        Raises:
            Refused: the model does not run.
        """
        tables, why = self._matching_tables(model, task)
        if tables is None:
            return no_answers(why, model.shape.top_k)
        state_B = np.full(len(asked.inverse_B), HAS_ROWS, np.uint8)
        rows: list[tuple[int, int]] = []
        for b, inverse in enumerate(asked.inverse_B.tolist()):
            entity = tables.entity(asked.entity_B16[b].tobytes())
            relation = tables.relation(asked.relation_B16[b].tobytes(), inverse=inverse)
            if entity is None or relation is None:
                state_B[b] = NEW_ENTITY if entity is None else NEW_RELATION
            else:
                rows.append((entity, relation))
        heads, relations = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
        tails_NK, scores_NK = model.complete(heads, relations, tables)
        model.own = model.own or bool(rows)
        keys_NK16 = tables.entity_keys_E16[np.maximum(tails_NK, 0)]
        return LookupResult("", state_B, tails_NK, keys_NK16, scores_NK)

    def unavailable_reason(self, model: CompletionModel, task: str) -> str:
        """Why no question can be answered; empty if some may be."""
        return self._matching_tables(model, task)[1]

    def _matching_tables(self, model: CompletionModel, task: str) -> tuple[Tables | None, str]:
        """Embeddings that fit the model, or why there are none."""
        tables, why = self._tables(task)
        if tables is None:
            return None, why
        return (None, why) if (why := model.misfit(tables)) else (tables, "")

    def _tables(self, task: str) -> tuple[Tables | None, str]:
        """The tables, read again if training has written since; and why there are none."""
        now = (task, self._private.revision(task))
        if self._read[0] != now:
            try:
                found, why = (
                    embedding_tables.tables(self._private.read_some(task, embedding_tables.NAMES)),
                    NO_TABLES,
                )
            except Misconfigured as error:
                found, why = None, str(error)
            self._read = (now, found, why)
        return self._read[1:]


def no_answers(why: str, top_k: int) -> LookupResult:
    """A result without answers."""
    return LookupResult(
        why,
        np.zeros(0, np.uint8),
        np.zeros((0, top_k), np.int64),
        np.zeros((0, top_k, KEY_BYTES), np.uint8),
        np.zeros((0, top_k), np.float32),
    )
