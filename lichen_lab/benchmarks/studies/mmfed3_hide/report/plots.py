"""The page's own figure, from a part's runs alone."""

from lichen_lab.benchmarks.studies.mmfed3_hide.part import MRR, Results
from lichen_lab.benchmarks.study.report.plots import below, look
from lichen_lab.simulation.reporting import style

_PERCENT = 100.0
_MINUTE_S = 60.0


def by_minutes(results: Results, graph: str, name: str) -> str:
    """MRR by CPU that was spent, a line a method and seed."""
    made, (axes,) = style.figure(6.4, 4.3)
    for place, (variant, runs) in enumerate(results.pairs()):
        colour, dash = look(place)
        for number, one in enumerate(runs.values() if variant.dataset == graph else ()):
            minutes = [each.cpu_s / _MINUTE_S for each in one.looks]
            label = None if number else variant.method
            axes.plot(
                minutes,
                [_PERCENT * each.test["mrr"] for each in one.looks],
                dash,
                color=colour,
                lw=2,
                label=label,
            )
    axes.set_xlabel("minutes of CPU in training and folding")
    axes.set_ylabel(MRR)
    axes.grid(axis="y")
    below(axes)
    return style.svg(made, name)
