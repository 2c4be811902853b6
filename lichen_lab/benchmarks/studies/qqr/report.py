"""The study's page: its text, figures and tables."""

from collections.abc import Iterable, Sequence
from typing import Final

from matplotlib.ticker import FuncFormatter

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.qqr.parts.bytes import bytes_at, smoothed
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome
from lichen_lab.benchmarks.studies.qqr.variants import Results
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import bars, below, by_round, look
from lichen_lab.benchmarks.tables import is_margin, tables
from lichen_lab.simulation.reporting import style

ROOM: Final = 3.0
"""Percentage points left free around the shown values."""


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables."""
    absolute = [row for row in rows if not is_margin(row)]
    return (ReportGroup(drawings(_figures(results, absolute)), tables(rows)),)


def _figures(results: Results, rows: Sequence[ResultRow]) -> Iterable[tuple[str, str]]:
    """Figures by part: accuracy by round, over bytes, or by condition."""
    name = results.part.name
    if name == "bytes":
        yield "accuracy (mean over seeds, smoothed) over bytes", against_bytes(results, name)
    elif any(row.seconds for row in rows):
        for place, under in enumerate(dict.fromkeys(line.under for line, _ in results.pairs())):
            drawing = f"{name}{place}"
            yield under, by_round(results, _curve, "test accuracy, %", drawing, under=under, room=ROOM)
    else:
        for place, metric in enumerate(dict.fromkeys(row.metric for row in rows)):
            yield metric, bars([row for row in rows if row.metric == metric], f"{name}{place}")


def _curve(outcome: QqrOutcome) -> dict[int, float]:
    return {at: 100 * x for at, x in outcome.curve.items()}


def against_bytes(results: Results, name: str) -> str:
    """Accuracy over bytes sent up, one line a variant, bytes on a logarithmic axis."""
    made, (axes,) = style.figure(6.4, 4.3)
    top = 0.0
    for place, (variant, runs) in enumerate(results.pairs()):
        colour, dash = look(place)
        reached = smoothed(runs)
        sent = [bytes_at(runs, round_) / 1e6 for round_ in reached]
        axes.plot(
            sent, list(reached.values()), dash, color=colour, lw=2, marker="o", ms=3.5, label=variant.method
        )
        top = max(top, *reached.values())
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda megabytes, _: f"{megabytes:g}"))
    axes.set_ylim(max(0.0, top - 30), min(100.0, top + ROOM))
    axes.set_xlabel("MB sent up by all devices (logarithmic)")
    axes.set_ylabel("test accuracy, %")
    axes.grid(which="major")
    below(axes)
    return style.svg(made, name)


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
