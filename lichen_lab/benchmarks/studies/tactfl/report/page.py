"""The study's page: :mod:`lichen_lab.benchmarks.study.report.page` with its own words and figures."""

from collections.abc import Iterable, Sequence
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.tactfl.part import F1, Results
from lichen_lab.benchmarks.studies.tactfl.report import plots
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import by_round, conditions
from lichen_lab.benchmarks.tables import tables

_BY_ROUND: Final = frozenset({"table", "encoders", "aggregators"})
"""Parts whose versions are shown as they come."""
_WEIGHTS: Final = frozenset({"broken"})
"""Parts in which devices differ in what they weigh."""
_SEVERAL: Final = 2


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables."""
    return (ReportGroup(drawings(_figures(results, rows)), tables(rows), wide=True),)


def _figures(results: Results, rows: Sequence[ResultRow]) -> Iterable[tuple[str, str]]:
    """What suits the part: conditions side by side, versions by round, weights by device."""
    name = results.part.name
    if len({row.setting for row in rows}) >= _SEVERAL:
        yield "F1 by condition", conditions(rows, F1, "F1, %", f"{name}-conditions")
    places = dict.fromkeys((variant.dataset, variant.under) for variant, _ in results.pairs())
    for number, (dataset, under) in enumerate(places):
        if name in _BY_ROUND:
            drawn = by_round(
                results,
                _curve,
                "F1 on test people, %",
                f"{name}-r{number}",
                dataset=dataset,
                under=under,
                methods=plots.TRAINED,
            )
            yield f"{under}: by round", drawn
        if name in _WEIGHTS:
            yield f"{under}: weights", plots.shares(results, under, f"{name}-w{number}")


def _curve(outcome: TactflOutcome) -> dict[int, float]:
    return dict(outcome.by_round)


PAGE: Final = Page(
    study="tactfl",
    title="A fleet without labels, measured",
    lead="methods of one seed see the same devices and windows, and begin with the same network. TACTFL's "
    "updates are quantized, framed, checked, weighed and folded by the code that runs in the field.",
    footer="F1 is the mean over the classes, on people whom neither a device nor the coordinator has met. "
    "Figures: mean ± sample standard deviation over the seeds. Differences are paired, seed by seed: mean ± "
    "standard error, coloured where the mean is two standard errors or more from zero.",
    groups=groups,
    widest_px=860,
)
