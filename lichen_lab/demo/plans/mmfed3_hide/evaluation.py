"""Side job: scores of each gateway's model on held-out facts, and of the gateway trained alone.

It runs beside the fleet because it trains. Alone means: the same training for the same rounds with the same
facts at the same time, on structure alone (S-Ind of the paper), as a fleet of one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lichen_lab.demo.core.side_jobs import main
from lichen_lab.demo.plans.mmfed3_hide import devices
from lichen_lab.demo.plans.mmfed3_hide.results import Scores
from models.knowledge_graph.data.embedding_tables import Tables, tables
from models.knowledge_graph.data.files import Triple
from models.knowledge_graph.data.keyed import KeyedGraph
from models.knowledge_graph.data.keys import RELATIONS, key
from models.knowledge_graph.data.merging import empty, merge
from models.methods.mmfed3_hide import config_of
from models.tensors import read_npz
from protocol.tasks.links import Uplink
from protocol.tasks.task import Task


def scores(
    task: Task, own: Tables, secret: bytes, asked: Sequence[Triple], known: Sequence[Triple]
) -> Scores:
    """Filtered ranks of held-out facts by a gateway's tables, heads and tails.

    Args:
        task: says which score.
        own: the tables that its answers come from.
        secret: the fleet's.
        asked: held-out facts.
        known: what else is true.
    """
    from models.methods.mmfed3_hide.evaluation import judged  # noqa: PLC0415 - only in the child: torch

    asked_N3, known_N3 = (
        np.array([_rows(own, secret, one) for one in facts], np.int64).reshape(-1, 3)
        for facts in (asked, known)
    )
    found = judged(config_of(task), own, asked_N3, [asked_N3, known_N3])
    return Scores(found.mrr, found.hits_1, found.hits_10, found.questions)


def _rows(own: Tables, secret: bytes, fact: Triple) -> tuple[int, int, int]:
    head, relation, tail = fact
    h, r, t = (
        own.entity(key(secret, head)),
        own.relation(key(secret, relation, RELATIONS)),
        own.entity(key(secret, tail)),
    )
    if h is None or r is None or t is None:
        raise ValueError(f"{fact}: the gateway's tables lack one of them")
    return h, r, t


@dataclass(frozen=True)
class _GrowingGraph:
    """A gateway's graph by round."""

    graphs: Mapping[int, KeyedGraph]

    def at(self, round_: int) -> Any:
        """The graph that it had in that round."""
        return self.graphs[round_]


def by_itself(
    task: Task, name: str, turns: Mapping[int, Sequence[Triple]], secret: bytes
) -> tuple[dict[int, float], Tables]:
    """Train without a fleet: MRR by round on the gateway's own facts, and the tables in the end.

    Args:
        task: the fleet's.
        name: of the gateway.
        turns: round -> the facts that it had then.
        secret: the fleet's.
    """
    from lichen_lab.benchmarks.study.federation import Federation, StudyDevice  # noqa: PLC0415 - as above

    alone = task.model_copy(
        update={
            "config": {**task.config, **devices.ALONE},
            "uplink": Uplink(codec="float32", error_carry=False),
        }
    )
    graphs = {
        number: KeyedGraph.of(merge(empty(), facts)[0], secret, alone) for number, facts in turns.items()
    }
    device = StudyDevice(name, _GrowingGraph(graphs))
    federation = Federation(alone, [device])
    found = {number: federation.round(number).accepted[name]["mrr"] for number in turns}
    own = tables(device.private)
    if own is None:
        raise ValueError(f"{name}: training left no tables")
    return found, own


def results(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One line a result."""
    task = Task.model_validate(job["task"])
    secret = bytes.fromhex(job["secret"])
    for name, gateway in job["gateways"].items():
        facts, asked = [tuple(one) for one in gateway["facts"]], [tuple(one) for one in gateway["held_out"]]
        own = tables(read_npz(Path(gateway["private"])))
        if own is None:
            raise ValueError(f"{gateway['private']}: no tables")
        yield {"gateway": name, "scores": asdict(scores(task, own, secret, asked, facts))}
        turns = {int(number): facts[:count] for number, count in gateway["turns"].items()}
        reached, alone = by_itself(task, name, turns, secret)
        yield {"gateway": name, "alone": reached, "scores": asdict(scores(task, alone, secret, asked, facts))}


if __name__ == "__main__":
    main(results)
