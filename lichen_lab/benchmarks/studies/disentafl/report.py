"""The study's page: its text, figures and tables."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.parts import cost
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome
from lichen_lab.benchmarks.studies.disentafl.variants import PERSONAL, Results, of_kind
from lichen_lab.benchmarks.study.report.page import Page, ReportGroup, drawings
from lichen_lab.benchmarks.study.report.plots import by_round, look, margins
from lichen_lab.benchmarks.study.report.sheets import Pivot, Sheet, pivot
from lichen_lab.benchmarks.tables import is_margin, tables
from lichen_lab.simulation.reporting import style


def by_kind(row: ResultRow) -> tuple[str, str]:
    """``bytes up a round: kind``: kinds down, methods and directions across."""
    what, _, kind = row.metric.partition(": ")
    return kind, f"{row.method}: {what}"


def by_size(row: ResultRow) -> tuple[str, str]:
    """Conditions down; across, the method's figures and, by name, those of the methods compared with it."""
    ours = row.method in {v.AVG, cost.DEVICE}
    return row.setting, row.metric if ours else f"{row.method}: {row.metric}"


_PIVOTS: Final[Mapping[str, Pivot]] = {"bytes": by_kind, "cost": by_size}
"""Parts with many conditions, which are the rows of one table."""


def groups(results: Results, rows: Sequence[ResultRow]) -> tuple[ReportGroup, ...]:
    """A part's figures and tables, fleet by fleet."""
    fleets = dict.fromkeys(row.dataset for row in rows)
    return tuple(_fleet(results, [row for row in rows if row.dataset == name], name) for name in fleets)


def _fleet(results: Results, rows: Sequence[ResultRow], name: str) -> ReportGroup:
    part = results.part.name
    figures = drawings(_figures(results, rows, name))
    if part in _PIVOTS:
        return ReportGroup(figures, (), (pivot(rows, _PIVOTS[part]),), name, wide=part == "cost")
    sheet = kinds(results, name) if part == "table" else None
    # a kind's difference from Local is in the sheet of kinds
    of_a_kind = f"above {v.TITLES[v.LOCAL]}, points: "
    shown = rows if sheet is None else [row for row in rows if not row.metric.startswith(of_a_kind)]
    return ReportGroup(figures, tables(shown), () if sheet is None else (sheet,), name)


def _figures(results: Results, rows: Sequence[ResultRow], fleet: str) -> Iterable[tuple[str, str]]:
    """Figures by the kind of rows: growth of cost, traffic by kind, curves and margins."""
    part = f"{results.part.name}-{fleet}"
    if fleet == cost.DATASET:
        for place, metric in enumerate((cost.DOWN, cost.HOLDS)):
            yield metric, growth(rows, metric, f"{part}{place}")
    elif results.part.name == "bytes":
        yield "bytes of a device and round, by kind", traffic(results, fleet, part)
    else:
        unders = dict.fromkeys(line.under for line, _ in results.pairs() if line.dataset == fleet)
        for place, under in enumerate(unders):
            name = f"{part}c{place}"
            yield under, by_round(results, _curve, PERSONAL.metric, name, dataset=fleet, under=under)
        differences = [row for row in rows if is_margin(row)]
        for place, method in enumerate(dict.fromkeys(row.method for row in differences)):
            own = [row for row in differences if row.method == method]
            yield f"{method}: paired differences", margins(own, f"{part}m{place}")


def _curve(outcome: DisentAflOutcome) -> dict[int, float]:
    return dict(outcome.by_round)


def kinds(results: Results, fleet: str) -> Sheet | None:
    """Personal models by kind of device, mean over seeds and devices, in %; None without any."""
    by_method = [(v.method, runs) for v, runs in results.pairs() if v.spec.fleet == fleet]
    if not by_method:
        return None
    names = dict.fromkeys(next(iter(by_method[0][1].values())).kinds.values())
    lines = tuple(
        (kind, tuple(fmean(map(of_kind(kind), runs.values())) for _, runs in by_method)) for kind in names
    )
    methods, local = tuple(method for method, _ in by_method), v.TITLES[v.LOCAL]
    return Sheet(
        "own models by kind of device, mean over seeds, %; green: above Local, red: below",
        methods,
        lines,
        methods.index(local) if local in methods else None,
    )


def growth(rows: Sequence[ResultRow], metric: str, name: str) -> str:
    """A device's bytes as each of the four numbers grows, beside the supernet and FedAvg."""
    means = {(row.method, row.setting): row.mean for row in rows if row.metric == metric}
    methods = tuple(dict.fromkeys(method for method, _ in means))
    made, panels = style.figure(9.2, 3.9, columns=len(cost.SWEEPS))
    top = max(means.values())
    for axes, (field, values) in zip(panels, cost.SWEEPS.items(), strict=True):
        sizes = {value: cost.usual_but(field, value).words for value in values}
        for place, method in enumerate(methods):
            points = [
                (v, means[method, words] / 1e3) for v, words in sizes.items() if (method, words) in means
            ]
            colour, dash = look(place)
            axes.plot(*zip(*points, strict=True), dash, color=colour, lw=2, marker="o", ms=4, label=method)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(values))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(0, 1.05 * top / 1e3)
        axes.set_xlabel(field)
        axes.grid(axis="y")
    panels[0].set_ylabel("kB")
    for axes in panels[1:]:
        axes.tick_params(labelleft=False)
    handles, labels = panels[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=9.5)
    return style.svg(made, name)


def traffic(results: Results, fleet: str, name: str) -> str:
    """Bytes of a device and round, both ways together, by kind: one mark a method."""
    by_method = [(v.method, runs) for v, runs in results.pairs() if v.spec.fleet == fleet]
    kinds = list(
        dict.fromkeys(kind for _, runs in by_method for one in runs.values() for kind in one.kinds.values())
    )
    made, (axes,) = style.figure(6.8, 1.5 + 0.42 * len(kinds))
    for place, (method, runs) in enumerate(by_method):
        moved = [np.mean([_moved(one, kind) for one in runs.values()]) / 1e3 for kind in kinds]
        axes.plot(moved, range(len(kinds)), "o", color=look(place)[0], ms=8, alpha=0.85, label=method)
    axes.set_yticks(range(len(kinds)), kinds, fontsize=9)
    axes.set_ylim(len(kinds) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("kB up and down, mean of a device and round")
    axes.grid(axis="x")
    axes.legend(loc="upper center", bbox_to_anchor=(0.35, -0.3), ncols=3, fontsize=9.5)
    return style.svg(made, name)


def _moved(outcome: DisentAflOutcome, kind: str) -> float:
    members = [member for member, other in outcome.kinds.items() if other == kind]
    return float(np.mean([outcome.bytes_up[m] + outcome.bytes_down[m] for m in members]))


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
