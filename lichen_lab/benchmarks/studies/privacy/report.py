"""The study's page: its text, figures and tables."""

from collections.abc import Sequence
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.privacy.settings import DATASETS
from lichen_lab.benchmarks.studies.privacy.variants import Results
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import bars
from lichen_lab.benchmarks.tables import is_margin, tables


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables, by data set."""
    metric = results.part.figures[0].metric
    return tuple(
        ReportGroup(
            drawings([(metric, _figure(f"{results.part.name}-{name}", metric, own))]),
            tables(own),
            name=dataset,
        )
        for name, dataset in DATASETS.items()
        if (own := [row for row in rows if row.dataset == dataset])
    )


def _figure(name: str, metric: str, rows: Sequence[ResultRow]) -> str:
    return bars([row for row in rows if row.metric == metric and not is_margin(row)], f"{name}-first")


PAGE: Final = Page(
    study="privacy",
    title="What protection costs, and what attacks find",
    lead="runs of one seed see the same people, windows and devices; they differ in the noise. Clipping, "
    "sampling, noise and account are the code that runs in the field.",
    footer="Figures: mean ± sample standard deviation over the seeds. Differences are paired, seed by seed: "
    "mean ± standard error, coloured where the mean is two standard errors or more from zero.",
    groups=groups,
    widest_px=640,
)
