"""The study's page: its text, figures and tables."""

from collections.abc import Iterable, Sequence
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.parts import table, throughput
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import MmFed3Outcome
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import MRR, Results
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import bars, below, by_round, conditions, look
from lichen_lab.benchmarks.study.report.sheets import Sheet, pivot
from lichen_lab.benchmarks.tables import tables
from lichen_lab.simulation.reporting import style

_BY_ROUND: Final = frozenset({"table", "fusions", "scores", "bytes"})
"""Parts whose versions are shown by round."""
_SHOWN: Final = frozenset({v.FEDE, v.MMFEDE, v.MMFEDE_HIDE, v.OURS, *v.BOUNDS})
"""Methods of the matrix with a drawn curve: curves of all would hide each other."""


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables, graph by graph."""
    return tuple(
        _group(results, [row for row in rows if row.dataset == graph], graph, f"{results.part.name}-{at}")
        for at, graph in enumerate(dict.fromkeys(row.dataset for row in rows))
    )


def _group(results: Results, rows: Sequence[ResultRow], graph: str, drawing: str) -> ReportGroup:
    sheets = matrix(rows) if results.part.name == table.PART.name else ()
    return ReportGroup(
        drawings(_figures(results, rows, graph, drawing)), tables(rows), sheets, graph, wide=True
    )


def matrix(rows: Sequence[ResultRow]) -> tuple[Sheet, ...]:
    """MRR by way to learn (down) and replacement of missing features (across); none without such rows."""
    shown = [row for row in rows if row.metric == MRR and row.method in v.MATRIX]
    title = "MRR, mean over seeds, %: ways to learn, and what fills absent features"

    def place(row: ResultRow) -> tuple[str, str]:
        fleet, imputer = v.MATRIX[row.method]
        return fleet, v.IMPUTERS[imputer]

    return (pivot(shown, place, title, digits=2),) if shown else ()


def _figures(
    results: Results, rows: Sequence[ResultRow], graph: str, drawing: str
) -> Iterable[tuple[str, str]]:
    """Figures by part: rates side by side, versions by round or by minutes of CPU, speeds."""
    name = results.part.name
    if name == "rates":
        yield "MRR by share of features that are there", conditions(rows, MRR, MRR, f"{drawing}-rates")
    if name in _BY_ROUND:
        unders = dict.fromkeys(variant.under for variant, _ in results.pairs())
        # a part compares either methods under one condition, or conditions of one method
        if len(unders) > 1:
            ours = by_round(
                results, _curve, MRR, f"{drawing}-ours", dataset=graph, methods={v.OURS}, line="under"
            )
            yield "MRR by round", ours
        else:
            shown = by_round(results, _curve, MRR, f"{drawing}-all", dataset=graph, methods=_SHOWN)
            yield f"{next(iter(unders))}: by round", shown
    if name == "full":
        yield "MRR by minutes of CPU", by_minutes(results, graph, f"{drawing}-cpu")
    speeds = [row for row in rows if row.metric == throughput.SPEED]
    if speeds:
        yield "triples a second", bars(speeds, f"{drawing}-speed")


def _curve(outcome: MmFed3Outcome) -> dict[int, float]:
    return {look.round: 100 * look.test["mrr"] for look in outcome.looks}


def by_minutes(results: Results, graph: str, name: str) -> str:
    """MRR by CPU minutes spent, a line for each method and seed."""
    made, (axes,) = style.figure(6.4, 4.3)
    for place, (variant, runs) in enumerate(results.pairs()):
        colour, dash = look(place)
        for number, one in enumerate(runs.values() if variant.dataset == graph else ()):
            minutes = [each.cpu_s / 60 for each in one.looks]
            mrr = [100 * each.test["mrr"] for each in one.looks]
            axes.plot(minutes, mrr, dash, color=colour, lw=2, label=None if number else variant.method)
    axes.set_xlabel("minutes of CPU in training and folding")
    axes.set_ylabel(MRR)
    axes.grid(axis="y")
    below(axes)
    return style.svg(made, name)


PAGE: Final = Page(
    study="mmfed3_hide",
    title="Private graphs completed together, measured",
    lead="methods of one seed see the same facts, features, first embeddings and warm start. Every update is "
    "quantized, framed, checked and folded by the code that runs in the field. The features are not the "
    "paper's (no pictures; names with short texts, and numbers): the order of methods is what is compared.",
    footer="MRR and hits: filtered, heads and tails, clients by their facts, on test facts at the round that "
    "answers validation facts best. Figures: mean ± sample standard deviation over the seeds. Differences "
    "are paired, seed by seed: mean ± standard error, coloured where the mean is two standard errors or more "
    "from zero.",
    groups=groups,
    widest_px=860,
)
