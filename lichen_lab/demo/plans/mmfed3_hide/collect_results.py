"""The story of a knowledge-graph fleet, from what coordinator, broker, gateways and judge know."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lichen_lab.demo.core.results import rounds_of
from lichen_lab.demo.core.traffic import TrafficTurn as Moved
from lichen_lab.demo.plans.mmfed3_hide.results import Gateway, GraphStory, Scores, Turn
from models.knowledge_graph.data.files import Triple
from models.methods.mmfed3_hide import config_of
from protocol.tasks.task import Task

SHOWN: Final = 5
"""Answers to a question that are told."""
_FLOAT32: Final = 4
Line = dict[str, Any]


def history(story: GraphStory, task: Task, known: Mapping[str, Any], moved: Mapping[str, Any]) -> None:
    """Rounds and each gateway's turns, from the coordinator's database; bytes as the broker carried them."""
    story.rounds = rounds_of(known, "mrr")
    counted = {one.round for one in story.rounds}
    for row in known["rounds"]:
        for update in row["updates"] if row["round"] in counted else ():
            gateway = story.gateway(update["device"])
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
        float32=whole(task, entities),
    )


def whole(task: Task, entities: int) -> int:
    """Bytes of the rows of so many entities and of all projections, in float32."""
    features = task.graph.features if task.graph else ()
    return _FLOAT32 * config_of(task).dim * (entities + sum(one.dim for one in features))


def answers(gateway: Gateway, lines: Iterable[Line], facts: Iterable[Triple]) -> None:
    """The first and the last answers to each question, without facts that the gateway has in the end."""
    known = set(facts)
    by_question: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        by_question.setdefault((line["head"], line["relation"]), []).append(line)
    for answer in gateway.answers:
        given = by_question.get((answer.head, answer.relation), [])
        if given:
            answer.before, answer.after = (_unknown(line, known) for line in (given[0], given[-1]))


def _unknown(line: Line, known: set[Triple]) -> tuple[str, ...] | None:
    """The best tails that are no known facts; None where the gateway could not answer."""
    if not line.get("tails"):
        return None
    names = [tail["entity"] for tail in line["tails"]]
    return tuple(name for name in names if (line["head"], line["relation"], name) not in known)[:SHOWN]


def judged(story: GraphStory, lines: Iterable[Mapping[str, Any]]) -> None:
    """Scores of the gateways' models, and what each reaches by itself."""
    for line in lines:
        gateway = story.gateway(line["gateway"])
        if "alone" in line:
            gateway.alone = {int(number): float(mrr) for number, mrr in line["alone"].items()}
            gateway.scores_alone = Scores(**line["scores"])
        else:
            gateway.scores = Scores(**line["scores"])
