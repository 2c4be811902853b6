"""QQR's report: its drawings, each from the results alone, and its values."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from lichen_lab.demo.core.results import spread
from lichen_lab.demo.figures import accuracy_by_round, describe_confusion, heat, sensors, window_figures
from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.demo.plans.qqr.simulated_seeds import FEDERATED, SeedLine, summarise
from lichen_lab.demo.rollout import plots as rollout
from lichen_lab.demo.rollout.checks import bad_model_contained
from lichen_lab.simulation.reporting import style

_PERCENT = 100.0


def bytes_by_round(results: QqrResults) -> str:
    """Payload bytes of each round, up and down."""
    made, (axes,) = style.figure(7.4, 3.0)
    rounds = np.array([r.round for r in results.rounds], float)
    up = np.diff([0, *(r.bytes_up for r in results.rounds)]) / 1000
    down = np.diff([0, *(r.bytes_down for r in results.rounds)]) / 1000
    axes.bar(rounds - 0.19, up, 0.36, color=style.BLUE, label="up: quantized updates")
    axes.bar(rounds + 0.19, down, 0.36, color=style.GREEN, label="down: models")
    style.rounds_axis(axes, "kB, all devices")
    axes.set_axisbelow(True)
    axes.legend(loc="upper right", ncols=style.legend_columns(2, 1))
    axes.margins(y=0.4 if style.on_phone() else 0.25)
    return style.svg(made, "bytes")


def coverage(results: QqrResults) -> str:
    """Per device and class: windows that hold each modality."""
    height = 1.0 + 0.38 * max(1, len(results.devices))
    made, all_axes = style.figure(
        2.0 + 2.7 * len(results.modalities), height, columns=len(results.modalities)
    )
    for place, (axes, modality) in enumerate(zip(all_axes, results.modalities, strict=True)):
        empty = [0] * len(results.labels)
        table = np.array([d.counts.get(modality) or empty for d in results.devices], float)
        names = style.row_names([d.name for d in results.devices], place)
        heat(axes, table, rows=names, columns=results.labels, shades=style.SHADES, text="{:.0f}")
        axes.set_title(modality, fontsize=11)
        axes.tick_params(axis="x", labelsize=8.5)
    return style.svg(made, "coverage")


def study(lines: Sequence[SeedLine]) -> str:
    """Each variant's seeds as dots, joined with the fleet's by seed, and the mean as a bar."""
    variants = list(dict.fromkeys(line.variant for line in lines))
    made, (axes,) = style.figure(7.4, 0.9 + 0.5 * len(variants))
    for row, variant in enumerate(variants):
        values = [_PERCENT * line.accuracy for line in lines if line.variant == variant]
        colour = style.GREEN if variant == FEDERATED else style.GREY
        axes.plot(values, [row] * len(values), "o", color=colour, ms=7, alpha=0.75, mew=0)
        axes.plot([np.mean(values)] * 2, [row - 0.32, row + 0.32], color=colour, lw=3)
    for seed in sorted({line.seed for line in lines}):
        own = {line.variant: _PERCENT * line.accuracy for line in lines if line.seed == seed}
        points = [(own[v], row) for row, v in enumerate(variants) if v in own]
        axes.plot(*zip(*points, strict=True), color=style.FAINT, lw=1, zorder=0)
    style.rows_axis(axes, variants, "accuracy on unseen people, %")
    return style.svg(made, "study")


def figures(results: QqrResults) -> Mapping[str, str]:
    """All figures with data."""
    alone = {"a device alone": results.alone} if results.alone else {}
    drawn = {
        "accuracy": accuracy_by_round(results, alone, "the fleet's model", "accuracy"),
        "bytes": bytes_by_round(results),
        "sensors": sensors(results.devices, results.modalities),
        "coverage": coverage(results),
        **window_figures(results),
        **rollout.figures(results.rollout),
    }
    if results.study:
        drawn["study"] = study(results.study)
    return drawn


def template_values(results: QqrResults) -> Mapping[str, Any]:
    """Further values of the template."""
    return {
        "confused": describe_confusion(results),
        "contained": bad_model_contained(results.rollout),
        "table": summarise(results.study),
        "alone": spread(results.alone) if results.alone else None,
        **rollout.template_values(results.rollout),
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.qqr", figures, template_values, parts=rollout.PARTS)
