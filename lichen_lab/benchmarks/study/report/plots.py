"""Drawings that several studies use, made from runs or rows."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.study.part import PartResults
from lichen_lab.benchmarks.study.run_spec import O
from lichen_lab.simulation.reporting import style

_DASHES: Final = ("-", "--", ":")
Curve = Mapping[int, float]
"""A run's figure by round."""
Values = NDArray[np.float64]


def look(place: int) -> tuple[str, str]:
    """Colour and dash of the n-th line."""
    colours = style.CLASSES
    return colours[place % len(colours)], _DASHES[(place // len(colours)) % len(_DASHES)]


def below(axes: Axes, columns: int = 2) -> None:
    """Put the legend below the figure, where it hides no line."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=columns, fontsize=9.5)


def mean_curve(runs: Sequence[Curve]) -> tuple[list[int], Values, Values]:
    """Rounds that all seeds evaluated, the mean over seeds, and its standard error."""
    rounds = sorted(set.intersection(*(set(one) for one in runs)))
    table = np.array([[one[round_] for round_ in rounds] for one in runs])
    error = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros(len(rounds))
    return rounds, table.mean(axis=0), error


def curves(
    lines: Iterable[tuple[str, Sequence[Curve]]], figure: str, name: str, room: float | None = None
) -> str:
    """A figure by round: for each method the mean over seeds with a band of one standard error.

    Args:
        lines: methods with a curve for each seed.
        figure: label of the axis, with the unit.
        name: of the drawing.
        room: margin around the values after the first third of the rounds; None: show all values.
    """
    made, (axes,) = style.figure(6.4, 4.3)
    lowest, highest = np.inf, -np.inf
    for place, (method, runs) in enumerate(lines):
        colour, dash = look(place)
        rounds, mean, error = mean_curve(runs)
        axes.plot(rounds, mean, dash, color=colour, lw=2, marker="o", ms=2.5, label=method)
        axes.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.14, lw=0)
        lowest, highest = min(lowest, mean[len(mean) // 3 :].min()), max(highest, mean.max())
    if room is not None and highest > lowest:
        axes.set_ylim(lowest - room, highest + room)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel(figure)
    axes.grid(axis="y")
    below(axes)
    return style.svg(made, name)


def by_round(
    results: PartResults[Any, O],
    curve: Callable[[O], Curve],
    figure: str,
    name: str,
    *,
    dataset: str | None = None,
    under: str | None = None,
    methods: Collection[str] | None = None,
    room: float | None = None,
    line: str = "method",
) -> str:
    """Runs by round: :func:`curves` of the matching lines of a part.

    Args:
        results: of a part.
        curve: makes the curve of an outcome.
        figure: label of the axis, with the unit.
        name: of the drawing.
        dataset: only this data set; None: all.
        under: only these conditions; None: all.
        methods: only these methods; None: all.
        room: see :func:`curves`.
        line: attribute that names a line: ``method`` or ``under``.
    """
    lines = [
        (getattr(variant, line), [curve(one) for one in runs.values()])
        for variant, runs in results.pairs()
        if dataset in {None, variant.dataset}
        and under in {None, variant.under}
        and (methods is None or variant.method in methods)
    ]
    return curves(lines, figure, name, room)


def conditions(rows: Sequence[ResultRow], metric: str, figure: str, name: str) -> str:
    """A metric under each condition: a line for each method, with bars of one standard error.

    Args:
        rows: all rows.
        metric: only rows of this metric are shown.
        figure: label of the axis.
        name: of the drawing.
    """
    found = [row for row in rows if row.metric == metric]
    unders = list(dict.fromkeys(row.setting for row in found))
    made, (axes,) = style.figure(6.8, 4.6)
    for place, method in enumerate(dict.fromkeys(row.method for row in found)):
        own = {row.setting: row for row in found if row.method == method}
        at = [number for number, under in enumerate(unders) if under in own]
        mean = [own[unders[number]].mean for number in at]
        error = [own[unders[number]].se for number in at]
        colour, dash = look(place)
        axes.errorbar(at, mean, error, fmt="o", ls=dash, color=colour, lw=2, ms=4, label=method)
    axes.set_xticks(range(len(unders)), unders, fontsize=8.5, rotation=20, ha="right")
    axes.set_xlim(-0.4, len(unders) - 0.6)
    axes.set_ylabel(figure)
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)
    return style.svg(made, name)


def bars(rows: Sequence[ResultRow], name: str) -> str:
    """One figure by condition and method: dots for means, lines for one standard deviation."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    made, (axes,) = style.figure(7.4, 1.2 + 0.24 * len(rows) + 0.34 * len(settings))
    level = 0.0
    ticks: list[tuple[float, str]] = []
    for setting in settings:
        # Above the methods' names left of the axis.
        left: Any = axes.get_yaxis_transform()
        axes.text(
            -0.4, level, setting, transform=left, fontsize=9.5, weight="bold", va="center", in_layout=False
        )
        for place, row in enumerate(row for row in rows if row.setting == setting):
            level += 1
            colour = look(place)[0]
            axes.plot([row.mean - row.sd, row.mean + row.sd], [level, level], color=colour, lw=2, alpha=0.55)
            axes.plot(row.mean, level, "o", color=colour, ms=7)
            ticks.append((level, row.method))
        level += 1.4
    axes.set_yticks(*zip(*ticks, strict=True), fontsize=9)
    axes.set_ylim(level - 0.4, -1)
    axes.set_xlabel(rows[0].metric)
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return style.svg(made, name)


def margins(rows: Sequence[ResultRow], name: str) -> str:
    """Paired differences of one method: dots for means, lines for one standard error."""
    made, (axes,) = style.figure(6.8, 1.1 + 0.3 * len(rows))
    for level, row in enumerate(rows):
        colour = style.GREEN if row.mean > 0 else style.RED
        axes.plot([row.mean - row.se, row.mean + row.se], [level, level], color=colour, lw=2, alpha=0.55)
        axes.plot(row.mean, level, "o", color=colour, ms=7)
    axes.axvline(0, color=style.GREY, lw=1)
    axes.set_yticks(range(len(rows)), [row.metric.removesuffix(", points") for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("points")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return style.svg(made, name)
