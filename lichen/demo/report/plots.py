"""The report's figures, each from the story alone."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.patches import Patch
from numpy.typing import NDArray

from lichen.demo.report import style
from lichen.demo.story import ObserverStory, Story
from lichen.demo.study import FEDERATED, Line, spread

_DARK_ABOVE = 0.55
_PERCENT = 100.0


def accuracy_by_round(story: Story) -> str:
    """The fleet's line over the band of what devices reach alone."""
    made, (axes,) = style.figure(7.4, 3.4)
    known = [(r.round, _PERCENT * r.accuracy) for r in story.rounds if r.accuracy is not None]
    if story.alone:
        mean, sd = spread(_PERCENT * a for a in story.alone)
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


def bytes_by_round(story: Story) -> str:
    """Payload bytes of each round, up and down."""
    made, (axes,) = style.figure(7.4, 3.0)
    rounds = np.array([r.round for r in story.rounds], float)
    up = np.diff([0, *(r.bytes_up for r in story.rounds)]) / 1000
    down = np.diff([0, *(r.bytes_down for r in story.rounds)]) / 1000
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


def heat(
    axes: Axes,
    values: NDArray[np.float64],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    shades: Colormap,
    text: str,
) -> None:
    """One heat map with its numbers in the cells; ``text`` formats them."""
    top = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    scaled = values / top if top > 0 else values
    axes.imshow(scaled, cmap=shades, vmin=0, vmax=1, aspect="auto")
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column]
            if np.isfinite(value):
                ink = "#ffffff" if scaled[row, column] > _DARK_ABOVE else "#1d2b26"
                axes.text(column, row, text.format(value), ha="center", va="center", color=ink, fontsize=9.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.spines[:].set_visible(False)


def sensors(story: Story) -> str:
    """Per device and modality: share of windows missing, and quality."""
    height = 1.0 + 0.38 * max(1, len(story.devices))
    made, (left, right) = style.figure(7.4, height, columns=2)
    names = [d.name for d in story.devices]
    table = [[_PERCENT * d.missing.get(m, 0.0) for m in story.modalities] for d in story.devices]
    heat(
        left, np.array(table, float), rows=names, columns=story.modalities, shades=style.WARM, text="{:.0f} %"
    )
    left.set_title("windows without this modality", fontsize=11)
    table = [[d.quality.get(m, np.nan) for m in story.modalities] for d in story.devices]
    heat(
        right,
        np.array(table, float),
        rows=style.row_names(names, 1),
        columns=story.modalities,
        shades=style.SHADES,
        text="{:.2f}",
    )
    right.set_title("quality of the rest", fontsize=11)
    return style.svg(made, "sensors")


def coverage(story: Story) -> str:
    """Per device and class: windows that hold each modality."""
    height = 1.0 + 0.38 * max(1, len(story.devices))
    made, all_axes = style.figure(2.0 + 2.7 * len(story.modalities), height, columns=len(story.modalities))
    for place, (axes, modality) in enumerate(zip(all_axes, story.modalities, strict=True)):
        empty = [0] * len(story.labels)
        table = np.array([d.counts.get(modality) or empty for d in story.devices], float)
        names = style.row_names([d.name for d in story.devices], place)
        heat(axes, table, rows=names, columns=story.labels, shades=style.SHADES, text="{:.0f}")
        axes.set_title(modality, fontsize=11)
        axes.tick_params(axis="x", labelsize=8.5)
    return style.svg(made, "coverage")


def confusion(story: Story) -> str:
    """Rows: what was done; columns: what the model said."""
    made, (axes,) = style.figure(5.2, 4.4)
    counts = np.array(story.confusion, float)
    share = _PERCENT * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shown = np.where(counts > 0, share, np.nan)
    heat(axes, shown, rows=story.labels, columns=story.labels, shades=style.SHADES, text="{:.0f}")
    axes.set_xlabel("the model said")
    axes.set_ylabel("was done")
    return style.svg(made, "confusion")


def timeline(observer: ObserverStory, labels: Sequence[str]) -> str:
    """The observing device's predictions against the truth, over the time of its stream."""
    made, (axes,) = style.figure(7.4, 2.9)
    width = _stride(observer)
    for p in observer.predictions:
        for level, label in ((2, p.truth), (1, p.label)):
            if label in labels:
                colour = style.CLASSES[labels.index(label) % len(style.CLASSES)]
                axes.add_patch(_box(p.t - width, level, width, 0.8, colour))
        if p.right is False:
            axes.plot(p.t - width / 2, 1.92, marker="x", color=style.RED, ms=4, mew=1.4)
    times = [p.t for p in observer.predictions]
    axes.fill_between(
        times, 0, [0.8 * p.confidence for p in observer.predictions], color=style.GREY, alpha=0.5, lw=0
    )
    if observer.fault is not None:
        axes.axvspan(*observer.fault, color=style.RED, alpha=0.10, lw=0)
        axes.text(sum(observer.fault) / 2, 2.92, "gyroscope silent", ha="center", va="bottom", fontsize=9.5)
    axes.set_yticks([0.4, 1.4, 2.4], ["confidence", "predicted", "true"])
    axes.set_ylim(0, 3.25)
    if times:
        axes.set_xlim(min(times) - width, max(times))
    axes.set_xlabel("seconds of the stream")
    axes.spines["left"].set_visible(False)
    colours = [
        Patch(color=style.CLASSES[i % len(style.CLASSES)], label=name) for i, name in enumerate(labels)
    ]
    axes.legend(
        handles=colours,
        ncols=style.legend_columns(len(labels), 4),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22),
        handlelength=1,
    )
    return style.svg(made, "timeline")


def _stride(observer: ObserverStory) -> float:
    gaps = np.diff([p.t for p in observer.predictions])
    return float(np.median(gaps)) if len(gaps) else 1.0


def _box(x: float, y: float, width: float, height: float, colour: str) -> Patch:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - beside its only use

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor="none", alpha=0.9)


def study(lines: Sequence[Line]) -> str:
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
