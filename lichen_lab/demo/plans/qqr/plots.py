"""The figures of QQR's report, each from the results alone."""

from collections.abc import Sequence

import numpy as np

from lichen_lab.demo.figures import heat
from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.demo.plans.qqr.simulated_seeds import FEDERATED, SeedLine, spread
from lichen_lab.simulation.reporting import style

_PERCENT = 100.0


def accuracy_by_round(results: QqrResults) -> str:
    """The fleet's accuracy by round, over the band of devices trained alone."""
    made, (axes,) = style.figure(7.4, 3.4)
    known = [(r.round, _PERCENT * r.accuracy) for r in results.rounds if r.accuracy is not None]
    if results.alone:
        mean, sd = spread(_PERCENT * a for a in results.alone)
        axes.axhspan(mean - sd, mean + sd, color=style.OCHRE, alpha=0.18, lw=0)
        axes.axhline(
            mean, color=style.OCHRE, lw=1.6, ls="--", label=f"a device alone: {mean:.0f} ± {sd:.0f} %"
        )
    if known:
        rounds, values = zip(*known, strict=True)
        axes.plot(rounds, values, color=style.GREEN, lw=2.4, marker="o", ms=4.5, label="the fleet's model")
        axes.annotate(
            f"{values[-1]:.0f} %", (rounds[-1], values[-1]), xytext=(6, 4), textcoords="offset points"
        )
        axes.set_xlim(min(rounds) - 0.4, max(rounds) + 0.9)
        style.round_ticks(axes, rounds)
    axes.set_ylim(0, 100)
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy on unseen people, %")
    axes.grid(axis="y")
    axes.legend(loc="lower right")
    return style.svg(made, "accuracy")


def bytes_by_round(results: QqrResults) -> str:
    """Payload bytes of each round, up and down."""
    made, (axes,) = style.figure(7.4, 3.0)
    rounds = np.array([r.round for r in results.rounds], float)
    up = np.diff([0, *(r.bytes_up for r in results.rounds)]) / 1000
    down = np.diff([0, *(r.bytes_down for r in results.rounds)]) / 1000
    axes.bar(rounds - 0.19, up, 0.36, color=style.BLUE, label="up: quantized updates")
    axes.bar(rounds + 0.19, down, 0.36, color=style.GREEN, label="down: models")
    style.round_ticks(axes, rounds)
    axes.set_xlabel("round")
    axes.set_ylabel("kB, all devices")
    axes.grid(axis="y")
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
    axes.set_yticks(range(len(variants)), variants)
    axes.invert_yaxis()
    axes.margins(y=0.15)
    axes.set_xlabel("accuracy on unseen people, %")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return style.svg(made, "study")
