"""The study's page: :mod:`lichen_lab.benchmarks.study.report.page` with its own words and figures."""

from collections.abc import Iterable, Sequence
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.qqr.part import Results
from lichen_lab.benchmarks.studies.qqr.report import plots
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import bars, by_round
from lichen_lab.benchmarks.tables import is_margin, tables


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables."""
    absolute = [row for row in rows if not is_margin(row)]
    return (ReportGroup(drawings(_figures(results, absolute)), tables(rows)),)


def _figures(results: Results, rows: Sequence[ResultRow]) -> Iterable[tuple[str, str]]:
    """What suits the part: accuracy by round, over bytes, or figures by condition."""
    name = results.part.name
    if name == "bytes":
        yield "accuracy (mean over seeds, smoothed) over bytes", plots.against_bytes(results, name)
    elif any(row.seconds for row in rows):
        unders = dict.fromkeys(v.under for v, _ in results.pairs())
        for place, under in enumerate(unders):
            yield (
                under,
                by_round(results, _curve, "test accuracy, %", f"{name}{place}", under=under, room=plots.ROOM),
            )
    else:
        for place, metric in enumerate(dict.fromkeys(row.metric for row in rows)):
            yield metric, bars([row for row in rows if row.metric == metric], f"{name}{place}")


def _curve(outcome: QqrOutcome) -> dict[int, float]:
    return {at: 100 * x for at, x in outcome.curve.items()}


PAGE: Final = Page(
    study="qqr",
    title="Prototypes against missing and noisy sensors, measured",
    lead="methods of one seed see the same windows, faults, initial model and order of training. Every "
    "update is quantized, framed, checked and folded by the code that runs in the field.",
    footer="Figures: mean ± sample standard deviation over the seeds; a run's accuracy is the mean of its "
    "last evaluations. Differences are paired, seed by seed: mean ± standard error, coloured where the mean "
    "is two standard errors or more from zero. Bands of curves: one standard error.",
    groups=groups,
    widest_px=640,
)
