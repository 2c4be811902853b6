"""QQR's demo: six watches whose sensors fail, one model for all, and four more that only observe."""

from rich.table import Table

from lichen_lab.demo.core.run import Demo
from lichen_lab.demo.core.screen import summary
from lichen_lab.demo.plans.qqr.checks import checks
from lichen_lab.demo.plans.qqr.prepare import prepare
from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.demo.plans.qqr.simulated_seeds import FEDERATED, SeedSummary, summarise
from lichen_lab.demo.plans.qqr.steps import live

_COLUMNS = ("accuracy %", "± sd", "prototypes minus this", "± sd", "seeds")


def table(results: QqrResults) -> Table | None:
    """The simulated alternatives; None if they were not simulated."""
    rows = summarise(results.study)
    title = "the same people and kinds of faults, simulated"
    return summary(title, _COLUMNS, map(_cells, rows)) if rows else None


def _cells(row: SeedSummary) -> tuple[str, ...]:
    own = row.variant == FEDERATED
    return (
        row.variant,
        f"{100 * row.mean:.1f}",
        f"{100 * row.sd:.1f}",
        "" if own else f"{100 * row.margin:+.1f}",
        "" if own else f"{100 * row.margin_sd:.1f}",
        str(row.seeds),
    )


DEMO = Demo(prepare, live, checks, table, "lichen_lab.demo.plans.qqr.report")
