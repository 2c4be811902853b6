"""Questions -> the lines that are written: a model's best answers from the device's own embeddings, by name.

This process knows names and facts; the model's process has the embeddings
(``edge_agent.inference.onnx_models.embedding_lookup``); keys connect them.

Shapes: B questions, N of them with rows in the tables, K answers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_agent.inference.onnx_models.completion_model import CompletionModel
from edge_agent.inference.onnx_models.embedding_lookup import (
    HAS_ROWS,
    NEW_ENTITY,
    NO_TABLES,
    KeyedQuestions,
    LookupResult,
    TableReader,
)
from edge_agent.knowledge_graph.question_file import Question
from edge_agent.knowledge_graph.reader import KnowledgeGraphSnapshot
from edge_agent.storage.private_tensors import PrivateTensors
from models.knowledge_graph.data import embedding_tables
from models.knowledge_graph.data.graph import BoolArray
from models.knowledge_graph.data.keys import Keys
from models.knowledge_graph.data.merging import codes
from protocol.bundle import BundleManifest
from protocol.tasks.task import Task

NO_TABLES_ANY_MORE: Final = (
    "this device has no embeddings: they come with a round of training, and the last of the task's {} is "
    "over (the coordinator's task may be given more: rounds.count)"
)


@dataclass(frozen=True)
class AskedQuestion:
    """Questions and the current knowledge graph; ``at`` is the time in monotonic seconds."""

    task: Task
    questions: tuple[Question, ...]
    snapshot: KnowledgeGraphSnapshot
    at: float


class NameIndex:
    """The names of a knowledge graph by key, and back.

    Args:
        snapshot: names, keys and facts.
    """

    def __init__(self, snapshot: KnowledgeGraphSnapshot) -> None:
        self.snapshot = snapshot
        graph, keyed = snapshot.graph, snapshot.keyed
        self._entities = {name: e for e, name in enumerate(graph.entities)}
        self._relations = {name: r for r, name in enumerate(graph.relations)}
        self._of_key = embedding_tables.rows_by_key(keyed.entity_keys_E16)
        """Index in the knowledge graph by key."""
        self._facts_N = np.sort(codes(graph.triples_N3))

    def unknown_name(self, question: Question) -> str:
        """Text about a name that is in no fact; empty if both are known."""
        for name, known in ((question.about, self._entities), (question.relation, self._relations)):
            if name not in known:
                return f"{name!r} is in no fact of this device"
        return ""

    def keyed(self, questions: Sequence[Question]) -> KeyedQuestions:
        """The questions with known names, by key."""
        keyed = self.snapshot.keyed
        about = [self._entities[question.about] for question in questions]
        relations = [self._relations[question.relation] for question in questions]
        return KeyedQuestions(
            keyed.entity_keys_E16[about],
            keyed.relation_keys_R16[relations],
            np.array([question.heads for question in questions], np.bool_),
        )

    def lines(
        self, asked: AskedQuestion, manifest: BundleManifest, found: LookupResult
    ) -> Iterator[dict[str, Any]]:
        """A line for each question; ``found`` is of those without an :meth:`unknown_name`."""
        if found.why:
            over = found.why == NO_TABLES and _is_over(manifest, asked.task)
            why = NO_TABLES_ANY_MORE.format(asked.task.rounds.count) if over else found.why
            yield from (_line(question, [], why) for question in asked.questions)
            return
        learned = _when_learned(manifest, asked.task)
        states, made = (
            iter(found.state_B.tolist()),
            zip(found.keys_NK16, found.tails_NK, found.scores_NK, strict=True),
        )
        for question in asked.questions:
            if unknown_name := self.unknown_name(question):
                yield _line(question, [], unknown_name)
            elif (state := next(states)) == HAS_ROWS:
                yield _line(question, self._answers(question, *next(made)))
            else:
                new = question.about if state == NEW_ENTITY else question.relation
                yield _line(question, [], f"{new!r} is new here: {learned}")

    def _answers(
        self, question: Question, keys_K16: Keys, tails: Sequence[int], scores: Sequence[float]
    ) -> list[dict[str, Any]]:
        """By name, the best first, with whether the device has it as a fact."""
        found = {
            e: score
            for key, tail, score in zip(keys_K16, tails, scores, strict=True)
            if tail >= 0 and (e := self._of_key.get(key.tobytes())) is not None
        }
        return [
            {"entity": self.snapshot.graph.entities[e], "score": _short(score), "known": bool(known)}
            for (e, score), known in zip(found.items(), self._known(question, [*found]), strict=True)
        ]

    def _known(self, question: Question, others: Sequence[int]) -> BoolArray:
        """Which of the entities make a fact of the question."""
        about = np.full(len(others), self._entities[question.about])
        relation = np.full(len(others), self._relations[question.relation])
        other = np.array(others, np.int64)
        ends = (other, relation, about) if question.heads else (about, relation, other)
        code_K = codes(np.stack(ends, axis=1))
        at_K = np.searchsorted(self._facts_N, code_K)  # isin would sort all facts for each question
        return np.equal(self._facts_N.take(at_K, mode="clip"), code_K)


class Answers:
    """Answers of a model that runs in this process.

    Args:
        private: embeddings written by training.
    """

    def __init__(self, private: PrivateTensors) -> None:
        self._tables = TableReader(private)
        self._names: NameIndex | None = None

    def lines(self, model: CompletionModel, asked: AskedQuestion) -> Iterator[dict[str, Any]]:
        """A line for each question, as JSON values; ``why`` if there is no answer.

        Raises:
            Refused: the model does not run.
        """
        names = self._names
        if names is None or names.snapshot is not asked.snapshot:
            names = self._names = NameIndex(asked.snapshot)
        known = [question for question in asked.questions if not names.unknown_name(question)]
        found = self._tables.answer(model, asked.task.name, names.keyed(known))
        yield from names.lines(asked, model.manifest, found)

    def unavailable_reason(self, model: CompletionModel, task: Task) -> str:
        """Why no question can be answered; empty if some may be."""
        why = self._tables.unavailable_reason(model, task.name)
        over = why == NO_TABLES and _is_over(model.manifest, task)
        return NO_TABLES_ANY_MORE.format(task.rounds.count) if over else why


def _is_over(manifest: BundleManifest, task: Task) -> bool:
    """Whether the model is of the task's last round."""
    return manifest.round >= task.rounds.count


def _when_learned(manifest: BundleManifest, task: Task) -> str:
    """Text about when a device learns new facts."""
    count = task.rounds.count
    if _is_over(manifest, task):
        return (
            f"the last of the task's {count} rounds is over, and it is learned only if the coordinator's "
            "task is given more (rounds.count)"
        )
    return (
        "it is learned in the next round of training that this device takes part in, if there is one (the "
        f"model is of round {manifest.round} of {count})"
    )


def stamped(line: dict[str, Any], manifest: BundleManifest, wall: float, latency_s: float) -> dict[str, Any]:
    """A line with its time, the model's version, and the latency since the question."""
    return {
        "wall": round(wall, 3),
        **line,
        "version": manifest.version,
        "latency_ms": round(1000 * latency_s, 2),
    }


def _line(question: Question, answers: list[dict[str, Any]], why: str = "") -> dict[str, Any]:
    about, others = ("tail", "heads") if question.heads else ("head", "tails")
    line = {about: question.about, "relation": question.relation, others: answers}
    return line | ({"why": why} if why else {})


def _short(value: float) -> float:
    """As many digits as float32 has."""
    return float(f"{value:.7g}")
