"""A model that completes knowledge graphs, in ONNX Runtime (``protocol.bundle.Completion``).

Shapes: B questions, E entities, X relations and their inverses, V views, D entity dim, C relation dim, K
answers.
"""

from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.inference.onnx_models.compatibility import MODEL_FILE
from edge_agent.inference.onnx_models.window_model import OnnxModel
from edge_agent.inference.providers.kinds import ON_CPU, Provider
from models.contract import FloatArray
from models.knowledge_graph.data.embedding_tables import Tables
from models.knowledge_graph.data.graph import IntArray
from protocol.bundle import COMPLETION_INPUTS, COMPLETION_OUTPUTS
from protocol.errors import Reason, Refused

_MAX_QUESTIONS: Final = 64
"""Questions of one call: with 50,000 entities their scores take 13 MB."""
_TYPES: Final = dict(zip(COMPLETION_INPUTS, ("int64", "int64", "float", "float"), strict=True))


class CompletionModel(OnnxModel):
    """An inference session; every call includes the embeddings. Arguments and errors of the base class."""

    def __init__(
        self, folder: Path, threads: int, file: str = MODEL_FILE, provider: Provider = ON_CPU
    ) -> None:
        super().__init__(folder, threads, file, provider)
        if self.manifest.graph is None:
            raise Refused(Reason.WRONG_TENSORS, f"{folder}: the model is of windows, not of knowledge graphs")
        self.shape = self.manifest.graph
        self.own = False
        """Whether it has answered from the device's own embeddings."""
        self._require_inputs()

    def _require_inputs(self) -> None:
        shape = self.shape
        dims: dict[str, list[int]] = {
            "head": [],
            "relation": [],
            "entities": [shape.views, shape.entity_dim],
            "relations": [shape.views * shape.relation_dim],
        }
        self._require_names(dims, COMPLETION_OUTPUTS)
        found = {i.name: i for i in self._session.get_inputs()}
        for name, wanted in dims.items():
            first, *others = list(found[name].shape) or [0]
            if isinstance(first, int) or others != wanted or found[name].type != f"tensor({_TYPES[name]})":
                raise Refused(
                    Reason.WRONG_TENSORS,
                    f"the ONNX model's input {name!r} is {found[name].type} {found[name].shape}, not "
                    f"{_TYPES[name]} of any number of {wanted}",
                )

    def misfit(self, tables: Tables) -> str:
        """Why it cannot answer from these embeddings; empty if it can."""
        shape, (_, views, dim) = self.shape, tables.entities_EVD.shape
        wide = tables.relations_XC.shape[1]
        if (views, dim, wide) == (shape.views, shape.entity_dim, shape.views * shape.relation_dim):
            return ""
        return (
            f"the model takes entities of {shape.views} x {shape.entity_dim} numbers and relations of "
            f"{shape.views * shape.relation_dim}; this device's embeddings have {views} x {dim} and {wide}"
        )

    def complete(self, head_B: IntArray, relation_B: IntArray, tables: Tables) -> tuple[IntArray, FloatArray]:
        """``tails_BK`` (rows of the entities; -1 if there are fewer) and ``scores_BK``, the highest first.

        Args:
            head_B: rows of the entities.
            relation_B: rows of the relations; the inverse of relation r is r + R.
            tables: the device's own, for which :meth:`misfit` is empty.

        Raises:
            Refused: ONNX Runtime cannot run it, or its output is invalid.
        """
        parts = [
            self._complete(
                head_B[at : at + _MAX_QUESTIONS],
                relation_B[at : at + _MAX_QUESTIONS],
                tables,
            )
            for at in range(0, len(head_B), _MAX_QUESTIONS)
        ]
        if not parts:
            nothing = np.empty((0, self.shape.top_k))
            return nothing.astype(np.int64), nothing.astype(np.float32)
        return np.concatenate([tails for tails, _ in parts]), np.concatenate([scores for _, scores in parts])

    def _complete(
        self, head_B: IntArray, relation_B: IntArray, tables: Tables
    ) -> tuple[IntArray, FloatArray]:
        feeds = (head_B, relation_B, tables.entities_EVD, tables.relations_XC)
        tails_BK, scores_BK = self._run(COMPLETION_OUTPUTS, dict(zip(COMPLETION_INPUTS, feeds, strict=True)))
        size, entities = (len(head_B), self.shape.top_k), len(tables.entities_EVD)
        if tails_BK.shape != size or scores_BK.shape != size or tails_BK.dtype != np.int64:
            raise Refused(
                Reason.WRONG_TENSORS,
                f"tails are {tails_BK.dtype} {tails_BK.shape}, scores {scores_BK.shape}, not {size}",
            )
        if ((tails_BK < -1) | (tails_BK >= entities)).any() or not np.isfinite(scores_BK).all():
            raise Refused(
                Reason.OUT_OF_BOUNDS, f"the model gave tails beyond {entities} entities, or no numbers"
            )
        return tails_BK, np.asarray(scores_BK, np.float32)

    def try_once(self) -> None:
        """Ask with tables of zeros: with fewer entities than answers, and with more.

        Raises:
            Refused: it fails, or the answers are not the best of all entities.
        """
        shape = self.shape
        for count in (1, shape.top_k + 1):
            tables = Tables(
                np.zeros((count, shape.views, shape.entity_dim), np.float32),
                np.zeros((count, 16), np.uint8),
                np.zeros((2, shape.views * shape.relation_dim), np.float32),
                np.zeros((1, 16), np.uint8),
            )
            tails_BK, scores_BK = self.complete(np.array([0, 0]), np.array([0, 1]), tables)
            answers = min(count, shape.top_k)
            whole = all(len(set(row)) == answers for row in tails_BK[:, :answers].tolist())
            if not whole or (tails_BK[:, answers:] != -1).any() or (np.diff(scores_BK, axis=1) > 0).any():
                raise Refused(
                    Reason.WRONG_TENSORS,
                    f"asked about {count} entities, the model did not give the best {answers} in order",
                )
