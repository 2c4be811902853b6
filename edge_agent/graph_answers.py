"""Questions -> the lines that are written: a model's best answers from the device's own embeddings, by name.

Names, facts and embeddings are all the device's; keys tie them (``models.graphs.serving``). Synchronous, for
one thread.

Shapes: B questions, K answers, N facts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_agent.graph_model import GraphModel
from edge_agent.graph_questions import Question
from edge_agent.graph_reading import Snapshot
from edge_agent.private import PrivateTensors
from models.graphs import serving
from models.graphs.graph import BoolArray
from models.graphs.merging import codes
from models.graphs.serving import Tables
from protocol.bundle import BundleManifest
from protocol.errors import Misconfigured
from protocol.task import Task

NO_TABLES: Final = "this device has no embeddings yet: they come with its first round of training"
NO_TABLES_ANY_MORE: Final = (
    "this device has no embeddings: they come with a round of training, and the last of the task's {} is "
    "over (the coordinator's task may be given more: rounds.count)"
)


@dataclass(frozen=True)
class Asked:
    """Questions, and the graph that they are about as it is now; ``at`` is when (monotonic seconds)."""

    task: Task
    questions: tuple[Question, ...]
    snapshot: Snapshot
    at: float


class Names:
    """What the names of a graph are in a device's embeddings, and back.

    Args:
        snapshot: names, keys and facts.
        tables: embeddings by key.
    """

    def __init__(self, snapshot: Snapshot, tables: Tables) -> None:
        self.snapshot, self.tables = snapshot, tables
        graph, keyed = snapshot.graph, snapshot.keyed
        self._entities = {name: e for e, name in enumerate(graph.entities)}
        self._relations = {name: r for r, name in enumerate(graph.relations)}
        named = serving.rows_by_key(keyed.entity_keys_E16)
        self._of_row = [named.get(key) for key in serving.rows_by_key(tables.entity_keys_E16)]
        """Index in the graph by row; None of what is not in it any more."""
        self._facts_N = np.sort(codes(graph.triples_N3))

    def rows(self, question: Question, learned: str) -> tuple[int, int] | str:
        """Of entity and relation; words where one has none: ``learned`` says when what is new gets one."""
        keyed, tables = self.snapshot.keyed, self.tables
        e, r = self._entities.get(question.about), self._relations.get(question.relation)
        if e is None or r is None:
            return f"{question.about if e is None else question.relation!r} is in no fact of this device"
        entity = tables.entity(keyed.entity_keys_E16[e].tobytes())
        relation = tables.relation(keyed.relation_keys_R16[r].tobytes(), inverse=question.heads)
        if entity is None or relation is None:
            new = question.about if entity is None else question.relation
            return f"{new!r} is new here: {learned}"
        return entity, relation

    def answers(
        self, question: Question, rows: Sequence[int], scores: Sequence[float]
    ) -> list[dict[str, Any]]:
        """By name, the best first, with whether the device knows it as a fact."""
        found = {
            e: score
            for row, score in zip(rows, scores, strict=True)
            if row >= 0 and (e := self._of_row[row]) is not None
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
    """Answers, from the embeddings as they are on the disk.

    Args:
        private: where training leaves them.
    """

    def __init__(self, private: PrivateTensors) -> None:
        self._private = private
        self._read: tuple[object, Tables | None, str] = (None, None, NO_TABLES)
        self._names: Names | None = None

    def lines(self, model: GraphModel, asked: Asked) -> Iterator[dict[str, Any]]:
        """A line for each question, as JSON values; ``why`` where there is no answer.

        Raises:
            Refused: the model does not run.
        """
        tables, why = self._fitting(model, asked.task)
        if tables is None:
            yield from (_line(question, [], why) for question in asked.questions)
            return
        names = self._named(asked.snapshot, tables)
        learned = _when_learned(model, asked.task)
        rows = [names.rows(question, learned) for question in asked.questions]
        some = [found for found in rows if not isinstance(found, str)]
        heads, relations = (np.array([found[i] for found in some], np.int64) for i in (0, 1))
        tails_BK, scores_BK = model.complete(heads, relations, tables)
        model.own = model.own or bool(some)
        made = zip(tails_BK.tolist(), scores_BK.tolist(), strict=True)
        for question, found in zip(asked.questions, rows, strict=True):
            if isinstance(found, str):
                yield _line(question, [], found)
            else:
                yield _line(question, names.answers(question, *next(made)))

    def why_not(self, model: GraphModel, task: Task) -> str:
        """Why no question can be answered, in words; empty where some may be."""
        return self._fitting(model, task)[1]

    def _fitting(self, model: GraphModel, task: Task) -> tuple[Tables | None, str]:
        """Embeddings that the model takes; or why there are none, in words."""
        tables, why = self._tables(task)
        if tables is None:
            over = why == NO_TABLES and _is_over(model, task)
            return None, NO_TABLES_ANY_MORE.format(task.rounds.count) if over else why
        return (None, why) if (why := model.misfit(tables)) else (tables, "")

    def _tables(self, task: Task) -> tuple[Tables | None, str]:
        """Read again where training has written since; and why there are none, in words."""
        now = (task.name, self._private.stamp(task.name))
        if self._read[0] != now:
            try:
                found, why = serving.tables(self._private.kept(task.name, serving.NAMES)), NO_TABLES
            except Misconfigured as error:
                found, why = None, str(error)
            self._read = (now, found, why)
        return self._read[1:]

    def _named(self, snapshot: Snapshot, tables: Tables) -> Names:
        names = self._names
        if names is None or names.snapshot is not snapshot or names.tables is not tables:
            names = self._names = Names(snapshot, tables)
        return names


def _is_over(model: GraphModel, task: Task) -> bool:
    """Whether the model is of the task's last round."""
    return model.manifest.round >= task.rounds.count


def _when_learned(model: GraphModel, task: Task) -> str:
    """When a device learns what is new in its facts, in words."""
    count = task.rounds.count
    if _is_over(model, task):
        return (
            f"the last of the task's {count} rounds is over, and it is learned only if the coordinator's "
            "task is given more (rounds.count)"
        )
    return (
        "it is learned in the next round of training that this device takes part in, if there is one (the "
        f"model is of round {model.manifest.round} of {count})"
    )


def stamped(line: dict[str, Any], manifest: BundleManifest, wall: float, latency_s: float) -> dict[str, Any]:
    """A line with when it was made, from which version, and how long after the question."""
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
