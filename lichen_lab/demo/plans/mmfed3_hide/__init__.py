"""MMFeD3-HidE's demo: sites that complete their own graphs together, and show nobody what is in them."""

from rich.table import Table

from lichen_lab.demo.core.run import Demo
from lichen_lab.demo.core.screen import summary
from lichen_lab.demo.plans.mmfed3_hide.checks import checks
from lichen_lab.demo.plans.mmfed3_hide.prepare import prepare
from lichen_lab.demo.plans.mmfed3_hide.results import Gateway, GraphResults
from lichen_lab.demo.plans.mmfed3_hide.steps import live

_COLUMNS = ("facts", "entities", "MRR", "alone", "hits@10", "alone", "up, % of float32", "down, %")


def table(results: GraphResults) -> Table:
    """One row a gateway: its facts, MRR with the fleet and alone, bytes beside float32."""
    return summary("held-out facts", _COLUMNS, map(_cells, results.gateways))


def _cells(one: Gateway) -> tuple[str, ...]:
    both = (one.scores, one.scores_alone)
    shares = (one.share(lambda turn: turn.up), one.share(lambda turn: turn.down))
    return (
        one.name,
        str(one.last.triples if one.last else one.triples),
        str(one.entities),
        *(f"{scores.mrr:.3f}" if scores else "" for scores in both),
        *(f"{100 * scores.hits10:.0f}" if scores else "" for scores in both),
        *("" if share is None else f"{100 * share:.0f}" for share in shares),
    )


DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
