"""The study's page: its text, figures and tables."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.tactfl import settings
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.settings import TactflOutcome
from lichen_lab.benchmarks.studies.tactfl.variants import F1, Results
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import below, by_round, conditions, look
from lichen_lab.benchmarks.tables import tables
from lichen_lab.simulation.reporting import style

_BY_ROUND: Final = frozenset(
    {"table", "encoders", "aggregators", "protocol", "protocol_others", "protocol_lstm", "weights", "dsads"}
)
"""Parts whose versions are shown by round."""
_WEIGHTS: Final = frozenset({"broken"})
"""Parts in which the devices' weights differ."""
TRAINED: Final = frozenset(
    title for title, line in {**v.LINES, **v.WEIGHTS, **v.RIVALS}.items() if line.end == settings.TRAINED
)
"""Titles of lines that show versions as trained."""


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables."""
    return (ReportGroup(drawings(_figures(results, rows)), tables(rows), wide=True),)


def _figures(results: Results, rows: Sequence[ResultRow]) -> Iterable[tuple[str, str]]:
    """Figures by part: conditions side by side, versions by round, weights by device."""
    name = results.part.name
    if len({row.setting for row in rows}) > 1:
        yield "F1 by condition", conditions(rows, F1, "F1, %", f"{name}-conditions")
    places = dict.fromkeys((variant.dataset, variant.under) for variant, _ in results.pairs())
    for number, (dataset, under) in enumerate(places):
        if name in _BY_ROUND:
            drawn = partial(by_round, results, _curve, "F1 on test people, %", f"{name}-r{number}")
            yield f"{under}: by round", drawn(dataset=dataset, under=under, methods=TRAINED)
        if name in _WEIGHTS:
            yield f"{under}: weights", shares(results, under, f"{name}-w{number}")


def _curve(outcome: TactflOutcome) -> dict[int, float]:
    return dict(outcome.by_round)


def shares(results: Results, under: str, name: str) -> str:
    """Each device's weight, mean over rounds, encoders and seeds; 1 is an equal share."""
    made, (axes,) = style.figure(6.4, 3.6)
    place = 0
    for variant, runs in results.pairs():
        outcomes = [one for one in runs.values() if one.shares]
        if variant.under != under or variant.method not in TRAINED or not outcomes:
            continue
        names = sorted(set().union(*(one.shares for one in outcomes)))
        mean = [np.mean([one.shares[name] for one in outcomes if name in one.shares]) for name in names]
        colour, dash = look(place)
        place += 1
        axes.plot(range(len(names)), mean, dash, color=colour, marker="o", ms=6, label=variant.method)
        kinds = outcomes[0].kinds
        words = [f"{device}\n{kinds[device]}" if kinds.get(device) else device for device in names]
        axes.set_xticks(range(len(names)), words, fontsize=8.5)
    axes.axhline(1, color=style.GREY, lw=1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("weight, shares of an equal one")
    axes.grid(axis="y")
    below(axes)
    return style.svg(made, name)


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
