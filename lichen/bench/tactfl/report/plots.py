"""The page's figures, each from a part's runs or rows alone."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from lichen.bench.result import Row
from lichen.bench.tactfl.part import F1, Results, shown
from lichen.bench.tactfl.setting import TRAINED, Outcome
from lichen.demo.report import style

_DASHES: Final = ("-", "--", ":")
Runs = Mapping[int, Outcome]
Values = NDArray[np.float64]


def look(place: int) -> tuple[str, str]:
    """Colour and dash of the n-th line."""
    colours = style.CLASSES
    return colours[place % len(colours)], _DASHES[(place // len(colours)) % len(_DASHES)]


def _below(axes: Axes, columns: int = 2) -> None:
    """The legend under the figure, where it hides no line."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.17), ncols=columns, fontsize=9.5)


def curves(results: Results, dataset: str, under: str, name: str) -> str:
    """F1 by round of the versions as trained: the mean over seeds, and one standard error about it."""
    made, (axes,) = style.figure(6.4, 4.3)
    place = 0
    for plain, runs in results.pairs():
        variant = shown(plain)
        if (variant.dataset, variant.under, variant.end) != (dataset, under, TRAINED):
            continue
        colour, dash = look(place)
        place += 1
        rounds, mean, error = _curve(runs)
        axes.plot(rounds, mean, dash, color=colour, lw=2, marker="o", ms=2.5, label=variant.method)
        axes.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.14, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("F1 on test people, %")
    axes.grid(axis="y")
    _below(axes)
    return style.svg(made, name)


def _curve(runs: Runs) -> tuple[list[int], Values, Values]:
    """Rounds that all seeds looked at, their mean, and its standard error."""
    told = [dict(one.by_round) for one in runs.values()]
    rounds = sorted(set.intersection(*(set(one) for one in told)))
    table = np.array([[one[round_] for round_ in rounds] for one in told])
    error = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros(len(rounds))
    return rounds, table.mean(axis=0), error


def conditions(rows: Sequence[Row], name: str) -> str:
    """F1 under each condition, in their order: a line a method, a bar for one standard error each way."""
    found = [row for row in rows if row.metric == F1]
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
    axes.set_ylabel("F1, %")
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)
    return style.svg(made, name)


def shares(results: Results, under: str, name: str) -> str:
    """What each device weighs, mean over rounds, encoders and seeds; 1 is as much as any other."""
    made, (axes,) = style.figure(6.4, 3.6)
    place = 0
    for plain, runs in results.pairs():
        variant = shown(plain)
        told = [one for one in runs.values() if one.shares]
        if (variant.under, variant.end) != (under, TRAINED) or not told:
            continue
        names = sorted(set().union(*(one.shares for one in told)))
        mean = [np.mean([one.shares[name] for one in told if name in one.shares]) for name in names]
        colour, dash = look(place)
        place += 1
        axes.plot(range(len(names)), mean, dash, color=colour, marker="o", ms=6, label=variant.method)
        kinds = told[0].kinds
        words = [f"{device}\n{kinds[device]}" if kinds.get(device) else device for device in names]
        axes.set_xticks(range(len(names)), words, fontsize=8.5)
    axes.axhline(1, color=style.GREY, lw=1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("weight, shares of an equal one")
    axes.grid(axis="y")
    _below(axes)
    return style.svg(made, name)
