"""The study's page: its text, figures and tables."""

from collections.abc import Iterable, Sequence
from typing import Final

from matplotlib.axes import Axes

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.labels import variants as v
from lichen_lab.benchmarks.studies.labels.settings import DATASETS
from lichen_lab.benchmarks.studies.labels.variants import Results
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import bars, look
from lichen_lab.benchmarks.tables import is_margin, tables
from lichen_lab.simulation.reporting import style

_VIEWS: Final = ((v.ACCURACY, v.START), (v.OWN_ACCURACY, v.OWN_START))
"""Figures over the number of labels, and the start model's."""
_CURVES: Final = frozenset({"curve", "linear"})
"""Parts whose figures are shown over the number of labels."""


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables, by data set."""
    return tuple(
        ReportGroup(drawings(_figures(results.part.name, own)), tables(own), name=dataset)
        for dataset in DATASETS.values()
        if (own := [row for row in rows if row.dataset == dataset])
    )


def _figures(part: str, rows: Sequence[ResultRow]) -> Iterable[tuple[str, str]]:
    """The number of labels across in some parts, else dots by rule."""
    for place, (metric, start) in enumerate(_VIEWS):
        name = f"{part}-{rows[0].dataset}-{place}"
        if part in _CURVES:
            yield metric, by_labels(rows, metric, start, name)
        else:
            yield metric, bars([row for row in rows if row.metric == metric and not is_margin(row)], name)


def by_labels(rows: Sequence[ResultRow], metric: str, start: str, name: str) -> str:
    """A figure over the number of labels on a device: asked and random, mean and one standard error."""
    made, (axes,) = style.figure(6.4, 4.3)
    known = {row.method: row for row in rows if row.metric == metric}
    for place, rule in enumerate((v.ASKED, v.RANDOM)):
        found = [
            (labels, known[v.title(rule, labels)]) for labels in v.BUDGETS if v.title(rule, labels) in known
        ]
        colour, dash = look(place)
        at, mean = [labels for labels, _ in found], [row.mean for _, row in found]
        axes.errorbar(
            at, mean, [row.se for _, row in found], ls=dash, color=colour, lw=2, marker="o", ms=4, label=rule
        )
    beginning = [row.mean for row in rows if row.metric == start]
    if beginning:
        axes.axhline(beginning[0], color=style.GREY, lw=1, ls=":", label="start model")
    _labels_axis(axes, metric)
    return style.svg(made, name)


def _labels_axis(axes: Axes, metric: str) -> None:
    axes.set_xscale("log")
    axes.set_xticks(v.BUDGETS, [str(labels) for labels in v.BUDGETS])
    axes.minorticks_off()
    axes.set_xlabel("labels on a device (logarithmic)")
    axes.set_ylabel(metric)
    axes.grid(axis="y")
    axes.legend(loc="lower right")


PAGE: Final = Page(
    study="labels",
    title="Labels that a device asks for, measured",
    lead="rules of one seed see the same people, windows, start model, rounds and order of training; they "
    "differ in which windows get a label. The rule, the quality of windows, training, frames and fold are "
    "the code that runs in the field.",
    footer="Figures: mean ± sample standard deviation over the seeds. Differences are paired, seed by seed: "
    "mean ± standard error, coloured where the mean is two standard errors or more from zero. Bars of "
    "curves: one standard error.",
    groups=groups,
    widest_px=640,
)
