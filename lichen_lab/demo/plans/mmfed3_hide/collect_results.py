"""Collects the results of the knowledge-graph demo: coordinator, broker, gateways, evaluating side job."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lichen_lab.demo.core.results import rounds_of
from lichen_lab.demo.core.traffic import TrafficTurn as Moved
from lichen_lab.demo.plans.mmfed3_hide.results import Gateway, GraphResults, Scores, Turn
from models.knowledge_graph.data.files import Triple
from models.methods.mmfed3_hide import config_of
from protocol.tasks.task import Task

SHOWN: Final = 5
"""Answers to a question that the report shows."""
_FLOAT32: Final = 4
Line = dict[str, Any]


def take_history(
    results: GraphResults, task: Task, known: Mapping[str, Any], moved: Mapping[str, Any]
) -> None:
    """Fill in rounds and each gateway's turns from the coordinator's history; bytes from the broker."""
    results.rounds = rounds_of(known, "mrr")
    counted = {one.round for one in results.rounds}
    for row in known["rounds"]:
        for update in row["updates"] if row["round"] in counted else ():
            gateway = results.gateway(update["device"])
            gateway.turns.append(_turn(gateway, task, row["round"], update, moved))


def _turn(
    gateway: Gateway, task: Task, number: int, update: Mapping[str, Any], moved: Mapping[str, Any]
) -> Turn:
    went: Moved = moved.get(gateway.name, {}).get(number, Moved())
    triples = int(update["samples"])
    entities = gateway.entities if triples > gateway.triples else gateway.entities_first
    return Turn(
        round=number,
        triples=triples,
        mrr=update["metrics"].get("mrr"),
        up=went.up,
        down=went.model_bytes,
        float32=float32_bytes(task, entities),
    )


def float32_bytes(task: Task, entities: int) -> int:
    """Bytes of the rows of so many entities and of all projections, in float32."""
    features = task.graph.features if task.graph else ()
    return _FLOAT32 * config_of(task).dim * (entities + sum(one.dim for one in features))


def take_answers(gateway: Gateway, lines: Iterable[Line], facts: Iterable[Triple]) -> None:
    """Fill in the first and last answers to each question, without facts that the gateway has at the end."""
    known = set(facts)
    by_question: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        by_question.setdefault((line["head"], line["relation"]), []).append(line)
    for answer in gateway.answers:
        given = by_question.get((answer.head, answer.relation), [])
        if given:
            answer.before, answer.after = (_unknown(line, known) for line in (given[0], given[-1]))


def _unknown(line: Line, known: set[Triple]) -> tuple[str, ...] | None:
    """The best tails that are no known facts; None if the gateway could not answer."""
    if not line.get("tails"):
        return None
    names = [tail["entity"] for tail in line["tails"]]
    return tuple(name for name in names if (line["head"], line["relation"], name) not in known)[:SHOWN]


def take_scores(results: GraphResults, lines: Iterable[Mapping[str, Any]]) -> None:
    """Fill in the scores of the gateways' models, and of each trained alone."""
    for line in lines:
        gateway = results.gateway(line["gateway"])
        if "alone" in line:
            gateway.alone = {int(number): float(mrr) for number, mrr in line["alone"].items()}
            gateway.scores_alone = Scores(**line["scores"])
        else:
            gateway.scores = Scores(**line["scores"])
