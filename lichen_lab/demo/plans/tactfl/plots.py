"""The figures of the report without labels, each from the results alone."""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from lichen_lab.demo.figures import heat
from lichen_lab.demo.plans.qqr.simulated_seeds import spread
from lichen_lab.demo.plans.tactfl.results import TactflResults, Weighing
from lichen_lab.simulation.reporting import style

_PERCENT: Final = 100.0
_COLUMNS: Final = 10
"""Small matrices in a row."""
_GAP: Final = 2
"""Cells between two of them."""
_SIDES: Final = (style.OCHRE, style.BLUE)


def short(part: str) -> str:
    """Short name of a part of the model."""
    return part.rpartition("/")[2]


def by_round(results: TactflResults) -> str:
    """Accuracy by round, with the fine-tuned last version, over the rivals without a fleet."""
    made, (axes,) = style.figure(7.4, 3.6)
    for rival, colour in zip(results.rivals, _SIDES, strict=False):
        if rival.mean is not None:
            mean, sd = spread(_PERCENT * one for one in rival.accuracies)
            axes.axhspan(mean - sd, mean + sd, color=colour, alpha=0.15, lw=0)
            axes.axhline(mean, color=colour, lw=1.6, ls="--", label=f"{rival.name}: {mean:.0f} ± {sd:.0f} %")
    known = [(r.round, _PERCENT * r.accuracy) for r in results.rounds if r.accuracy is not None]
    if known:
        rounds, values = zip(*known, strict=True)
        axes.plot(
            rounds[:-1], values[:-1], color=style.GREEN, lw=2.4, marker="o", ms=4.5,
            label="the fleet's encoders, the coordinator's head",
        )  # fmt: skip
        axes.plot(rounds[-2:], values[-2:], color=style.GREEN, lw=1.4, ls=":")
        axes.plot(rounds[-1:], values[-1:], "*", color=style.GREEN, ms=15, label="fine-tuned at the end")
        axes.annotate(
            f"{values[-1]:.0f} %", (rounds[-1], values[-1]), xytext=(9, -4), textcoords="offset points"
        )
        axes.set_xlim(min(rounds) - 0.4, max(rounds) + 0.9)
    shown = [
        *(value for _, value in known),
        *(_PERCENT * one for r in results.rivals for one in r.accuracies),
    ]
    # Not from 0: the compared values are close together.
    axes.set_ylim(max(0.0, 10 * (min(shown, default=0.0) // 10 - 1)), 100)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy on unseen people, %")
    axes.grid(axis="y")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=9)
    return style.svg(made, "byround")


def weights(results: TactflResults) -> str:
    """By part, each device's weight by round; the broken one in red, the equal share dashed."""
    names = [device.name for device in results.devices]
    parts = results.parts
    made, all_axes = style.figure(1.6 + 4.2 * len(parts), 3.5, columns=len(parts))
    for place, (axes, part) in enumerate(zip(all_axes, parts, strict=True)):
        for number, name in enumerate(names):
            _weight(axes, results, name, part, style.CLASSES[_shade(number)])
        equal = [(w.round, _PERCENT * w.equal(part)) for w in results.weighed if part in w.weights]
        axes.step(*zip(*equal, strict=True), where="mid", color=style.INK, lw=1, ls="--", label="equal share")
        axes.set_title(f"encoder of the {short(part)}", fontsize=11)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("round")
        axes.grid(axis="y")
        if place == 0:
            axes.set_ylabel("weight, %")
            axes.legend(
                ncols=style.legend_columns(4),
                loc="upper left",
                bbox_to_anchor=(0.0, -0.2),
                fontsize=9,
                handlelength=1.4,
            )
    return style.svg(made, "weights")


def _shade(number: int) -> int:
    """A colour of the palette, without the red, which is the broken device's."""
    free = [i for i, colour in enumerate(style.CLASSES) if colour != style.RED]
    return free[number % len(free)]


def _weight(axes: Axes, results: TactflResults, name: str, part: str, colour: str) -> None:
    shares = results.shares(name, part)
    broken = name == results.broken
    label = f"{name} (broken)" if broken else name
    axes.plot(
        [number for number, _ in shares],
        [_PERCENT * share for _, share in shares],
        color=style.RED if broken else colour,
        lw=2.6 if broken else 1.6,
        marker="o",
        ms=3,
        label=label,
    )


def similarity_table(one: Weighing, part: str, names: list[str]) -> NDArray[np.float64]:
    """Similarities; NaN if a device took no part."""
    rows = one.similarity.get(part, {})
    return np.array([[rows.get(a, {}).get(b, np.nan) for b in names] for a in names], float)


def last_similarity(results: TactflResults) -> str:
    """By part, similarities of the last round, with numbers."""
    one, names = results.weighed[-1], [device.name for device in results.devices]
    parts = tuple(one.weights)
    made, all_axes = style.figure(1.2 + 4.3 * len(parts), 1.1 + 0.5 * len(names), columns=len(parts))
    for place, (axes, part) in enumerate(zip(all_axes, parts, strict=True)):
        table = similarity_table(one, part, names)
        heat(
            axes,
            table,
            rows=style.row_names(names, place),
            columns=[name[:4] for name in names],
            shades=style.SHADES,
            text="{:.2f}",
        )
        axes.set_title(f"encoder of the {short(part)}", fontsize=11)
    return style.svg(made, "similarity")


def similarity_by_round(results: TactflResults) -> str:
    """Small similarity matrices for all rounds, on one scale from -1 to 1."""
    names = [device.name for device in results.devices]
    parts, count = results.parts, len(results.weighed)
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    made, all_axes = style.figure(9.4, (0.3 + 0.8 * rows) * len(parts), rows=len(parts))
    for axes, part in zip(all_axes, parts, strict=True):
        step = len(names) + _GAP
        whole = np.full((rows * step, columns * step), np.nan)
        for number, one in enumerate(results.weighed):
            top, left = step * (number // columns) + _GAP, step * (number % columns)
            whole[top : top + len(names), left : left + len(names)] = similarity_table(one, part, names)
            axes.text(left + len(names) / 2 - 0.5, top - 0.7, str(one.round), ha="center", fontsize=8)
        axes.imshow(whole, cmap=style.SHADES, vmin=-1, vmax=1, interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_ylabel(short(part), fontsize=9)
        axes.spines[:].set_visible(False)
    return style.svg(made, "rounds")
