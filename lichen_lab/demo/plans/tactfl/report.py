"""The report of the demo without labels: its drawings, each from the results alone, and its values."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from lichen_lab.demo.figures import accuracy_by_round, describe_confusion, heat, sensors, window_figures
from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.tactfl.comparison import PATIENCE
from lichen_lab.demo.plans.tactfl.results import TactflResults, Weighing
from lichen_lab.simulation.reporting import style

_PERCENT: Final = 100.0
_COLUMNS: Final = 10
"""Small matrices in a row."""
_GAP: Final = 2
"""Cells between two of them."""


def short(part: str) -> str:
    """Short name of a part of the model."""
    return part.rpartition("/")[2]


def by_round(results: TactflResults) -> str:
    """Accuracy by round, with the fine-tuned last version, over the rivals without a fleet."""
    others = {rival.name: rival.accuracies for rival in results.rivals if rival.accuracies}
    fleet = "the fleet's encoders, the coordinator's head"
    return accuracy_by_round(results, others, fleet, "byround", tuned=True)


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
        style.rounds_axis(axes, "" if place else "weight, %")
        if place == 0:
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


def figures(results: TactflResults) -> Mapping[str, str]:
    """All figures with data."""
    drawn = {
        "byround": by_round(results),
        "sensors": sensors(results.devices, results.modalities),
        **window_figures(results),
    }
    if results.weighed:
        drawn["weights"] = weights(results)
        drawn["similarity"] = last_similarity(results)
        drawn["rounds"] = similarity_by_round(results)
    return drawn


def template_values(results: TactflResults) -> Mapping[str, Any]:
    """Further values of the template."""
    last = results.weighed[-1].weights if results.weighed else {}
    return {"confused": describe_confusion(results), "last": last, "patience": PATIENCE}


PAGE: Final = DemoPage("lichen_lab.demo.plans.tactfl", figures, template_values, {"short": short})
