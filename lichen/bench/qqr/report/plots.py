"""The page's figures, each from a part's runs alone."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from lichen.bench.qqr.part import Results
from lichen.bench.qqr.parts.bytes import bytes_at, smoothed
from lichen.bench.qqr.setting import Outcome
from lichen.bench.result import Row
from lichen.demo.report import style

_PERCENT: Final = 100.0
_ROOM: Final = 3.0
"""Percentage points left free around what is shown."""
_DASHES: Final = ("-", "--", ":")
Runs = Mapping[int, Outcome]
Values = NDArray[np.float64]


def _look(place: int) -> tuple[str, str]:
    """Colour and dash of the n-th line."""
    colours = style.CLASSES
    return colours[place % len(colours)], _DASHES[(place // len(colours)) % len(_DASHES)]


def _below(axes: Axes, columns: int = 2) -> None:
    """The legend under the figure, where it hides no line."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=columns, fontsize=9.5)


def curves(results: Results, under: str, name: str) -> str:
    """Accuracy by round: the mean over seeds, and the band of one standard error about it."""
    made, (axes,) = style.figure(6.4, 4.3)
    lowest, highest = 100.0, 0.0
    methods = [v.method for v in results.part.variants if v.under == under]
    for place, method in enumerate(methods):
        runs = results.of(method, under)
        if not runs:
            continue
        colour, dash = _look(place)
        rounds, mean, error = _curve(runs)
        axes.plot(rounds, mean, dash, color=colour, lw=2, marker="o", ms=2.5, label=method)
        axes.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.14, lw=0)
        lowest, highest = min(lowest, mean[len(mean) // 3 :].min()), max(highest, mean.max())
    if highest > lowest:
        axes.set_ylim(lowest - _ROOM, highest + _ROOM)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, %")
    axes.grid(axis="y")
    _below(axes)
    return style.svg(made, name)


def _curve(runs: Runs) -> tuple[list[int], Values, Values]:
    """Evaluated rounds, mean accuracy in %, and its standard error."""
    rounds = sorted(set.intersection(*(set(one.curve) for one in runs.values())))
    table = _PERCENT * np.array([[one.curve[round_] for round_ in rounds] for one in runs.values()])
    error = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros(len(rounds))
    return rounds, table.mean(axis=0), error


def against_bytes(results: Results, name: str) -> str:
    """Accuracy over bytes sent up, one line a variant, bytes on a logarithmic axis."""
    made, (axes,) = style.figure(6.4, 4.3)
    top = 0.0
    for place, variant in enumerate(results.part.variants):
        runs = results.of(variant.method, variant.under)
        if not runs:
            continue
        colour, dash = _look(place)
        reached = smoothed(runs)
        sent = [bytes_at(runs, round_) / 1e6 for round_ in reached]
        axes.plot(
            sent, list(reached.values()), dash, color=colour, lw=2, marker="o", ms=3.5, label=variant.method
        )
        top = max(top, *reached.values())
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda megabytes, _: f"{megabytes:g}"))
    axes.set_ylim(max(0.0, top - 30), min(100.0, top + _ROOM))
    axes.set_xlabel("MB sent up by all devices (logarithmic)")
    axes.set_ylabel("test accuracy, %")
    axes.grid(which="major")
    _below(axes)
    return style.svg(made, name)


def bars(rows: Sequence[Row], name: str) -> str:
    """One figure by condition and method: a dot for the mean, a line for one standard deviation each way."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    made, (axes,) = style.figure(7.4, 1.2 + 0.24 * len(rows) + 0.34 * len(settings))
    level = 0.0
    ticks: list[tuple[float, str]] = []
    for setting in settings:
        # Above the methods' names, which stand left of the axis.
        left = axes.get_yaxis_transform()
        axes.text(
            -0.4, level, setting, transform=left, fontsize=9.5, weight="bold", va="center", in_layout=False
        )
        for place, row in enumerate(row for row in rows if row.setting == setting):
            level += 1
            colour = _look(place)[0]
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
