"""The study's page: :mod:`lichen_lab.benchmarks.study.report.page` with its own words and figures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import cost
from lichen_lab.benchmarks.studies.disentafl import names as n
from lichen_lab.benchmarks.studies.disentafl.part import Results
from lichen_lab.benchmarks.studies.disentafl.report import plots
from lichen_lab.benchmarks.studies.disentafl.report.sheets import BY_KIND, BY_SIZE, kinds
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import by_round, margins
from lichen_lab.benchmarks.study.report.sheets import Pivot, pivot
from lichen_lab.benchmarks.tables import is_margin, tables

_PIVOTS: Final[Mapping[str, Pivot]] = {"bytes": BY_KIND, "cost": BY_SIZE}
"""Parts whose many conditions are read down one table."""


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables, fleet by fleet."""
    fleets = dict.fromkeys(row.dataset for row in rows)
    return tuple(_fleet(results, [row for row in rows if row.dataset == name], name) for name in fleets)


def _fleet(results: Results, rows: Sequence[ResultRow], name: str) -> ReportGroup:
    part = results.part.name
    figures = drawings(_figures(results, rows, name))
    if part in _PIVOTS:
        return ReportGroup(figures, (), (pivot(rows, _PIVOTS[part]),), name, wide=part == "cost")
    by_kind = kinds(results, name) if part == "table" else None
    # a kind's difference from Local stands in the sheet of kinds
    of_a_kind = f"above {n.TITLES[n.LOCAL]}, points: "
    shown = rows if by_kind is None else [row for row in rows if not row.metric.startswith(of_a_kind)]
    return ReportGroup(figures, tables(shown), () if by_kind is None else (by_kind,), name)


def _figures(results: Results, rows: Sequence[ResultRow], fleet: str) -> Iterable[tuple[str, str]]:
    """What suits the rows: growth of cost, traffic by kind, curves and margins."""
    part = f"{results.part.name}-{fleet}"
    if fleet == cost.DATASET:
        for place, metric in enumerate((cost.DOWN, cost.HOLDS)):
            yield metric, plots.growth(rows, metric, f"{part}{place}")
    elif results.part.name == "bytes":
        yield "bytes of a device and round, by kind", plots.traffic(results, fleet, part)
    else:
        yield from _curves(results, fleet, part)
        yield from _margins(rows, part)


def _curves(results: Results, fleet: str, part: str) -> Iterable[tuple[str, str]]:
    unders = dict.fromkeys(v.under for v, _ in results.pairs() if v.dataset == fleet)
    for place, under in enumerate(unders):
        name, figure = f"{part}c{place}", "own models, mean over devices, %"
        yield under, by_round(results, _curve, figure, name, dataset=fleet, under=under)


def _curve(outcome: DisentAflOutcome) -> dict[int, float]:
    return dict(outcome.by_round)


def _margins(rows: Sequence[ResultRow], part: str) -> Iterable[tuple[str, str]]:
    found = [row for row in rows if is_margin(row)]
    for place, method in enumerate(dict.fromkeys(row.method for row in found)):
        own = [row for row in found if row.method == method]
        yield f"{method}: paired differences", margins(own, f"{part}m{place}")


PAGE: Final = Page(
    study="disentafl",
    title="Devices with different sensors and different targets, measured",
    lead="methods of one seed see the same devices and windows, on networks of the same width. DisentAFL's "
    "updates are quantized, framed, checked and folded by the code that runs in the field.",
    footer="A device's score is the mean over its targets: accuracy, 100 R² of a regression, the share of "
    "generated windows that a judge recognises. Figures: mean ± sample standard deviation over the seeds. "
    "Differences are paired, seed by seed: mean ± standard error, coloured where the mean is two standard "
    "errors or more from zero.",
    groups=groups,
)
