"""The page's own figures, each from a part's runs or rows alone."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import cost
from lichen_lab.benchmarks.studies.disentafl.part import Results
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome
from lichen_lab.benchmarks.study.report.plots import look
from lichen_lab.simulation.reporting import style


def growth(rows: Sequence[ResultRow], metric: str, name: str) -> str:
    """What a device moves or holds as each of the four numbers grows, beside the supernet and FedAvg."""
    found = {(row.method, row.setting): row.mean for row in rows if row.metric == metric}
    methods = tuple(dict.fromkeys(method for method, _ in found))
    made, panels = style.figure(9.2, 3.9, columns=len(cost.SWEEPS))
    top = max(found.values())
    for axes, (field, values) in zip(panels, cost.SWEEPS.items(), strict=True):
        sizes = {value: cost.usual_but(field, value).words for value in values}
        for place, method in enumerate(methods):
            points = [
                (v, found[method, words] / 1e3) for v, words in sizes.items() if (method, words) in found
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
    told = [(v.method, runs) for v, runs in results.pairs() if v.spec.fleet == fleet]
    kinds = list(
        dict.fromkeys(kind for _, runs in told for one in runs.values() for kind in one.kinds.values())
    )
    made, (axes,) = style.figure(6.8, 1.5 + 0.42 * len(kinds))
    for place, (method, runs) in enumerate(told):
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
