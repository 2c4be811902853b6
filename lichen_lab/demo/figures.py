"""Figures that several demos draw."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from lichen_lab.demo.core.results import DeviceResults, ObserverResults, WindowResults, spread
from lichen_lab.simulation.data.sets.spar import LABEL_NAMES
from lichen_lab.simulation.reporting import style

_DARK_ABOVE = 0.55
_PERCENT = 100.0


def window_figures(results: WindowResults) -> dict[str, str]:
    """Confusion of the last version and timeline of the observing device, as far as there is data."""
    drawn = {}
    if results.confusion:
        drawn["confusion"] = confusion(results.confusion, results.labels)
    if results.observer and results.observer.predictions:
        drawn["timeline"] = timeline(results.observer, results.labels)
    return drawn


def accuracy_by_round(
    results: WindowResults,
    others: Mapping[str, Sequence[float]],
    fleet: str,
    name: str,
    *,
    tuned: bool = False,
) -> str:
    """Accuracy by round, over bands of mean and standard deviation.

    Args:
        results: of the demo.
        others: title of each band -> accuracies.
        fleet: title of the line.
        name: of the drawing.
        tuned: whether the last version is of another kind, fine-tuned.
    """
    made, (axes,) = style.figure(7.4, 3.5)
    for (words, reached), colour in zip(others.items(), (style.OCHRE, style.BLUE), strict=False):
        mean, sd = spread(_PERCENT * one for one in reached)
        axes.axhspan(mean - sd, mean + sd, color=colour, alpha=0.16, lw=0)
        axes.axhline(mean, color=colour, lw=1.6, ls="--", label=f"{words}: {mean:.0f} ± {sd:.0f} %")
    known = [(r.round, _PERCENT * r.accuracy) for r in results.rounds if r.accuracy is not None]
    if known:
        rounds, values = zip(*known, strict=True)
        end = len(rounds) - tuned
        axes.plot(rounds[:end], values[:end], color=style.GREEN, lw=2.4, marker="o", ms=4.5, label=fleet)
        if tuned:
            axes.plot(rounds[-2:], values[-2:], color=style.GREEN, lw=1.4, ls=":")
            axes.plot(rounds[-1:], values[-1:], "*", color=style.GREEN, ms=15, label="fine-tuned at the end")
        style.number_beside(axes, f"{values[-1]:.0f} %", rounds[-1], values[-1])
        axes.set_xlim(min(rounds) - 0.4, max(rounds) + 0.9)
    shown = [*(value for _, value in known), *(_PERCENT * one for each in others.values() for one in each)]
    # Not from 0: the compared values are close together.
    axes.set_ylim(max(0.0, 10 * (min(shown, default=0.0) // 10 - 1)), 100)
    style.rounds_axis(axes, "accuracy on unseen people, %")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=9)
    return style.svg(made, name)


def describe_confusion(results: WindowResults) -> str:
    """The largest confusion in words, by share of a class's windows."""
    found = [
        (count / sum(row), count, sum(row), true, guess)
        for true, row in enumerate(results.confusion)
        for guess, count in enumerate(row)
        if true != guess and count
    ]
    if not found:
        return "No window is taken for another exercise."
    share, count, windows, true, guess = max(found)
    names = [LABEL_NAMES.get(label, label) for label in results.labels]
    return (
        f"The largest confusion: {names[true]} is taken for {names[guess]} in {_PERCENT * share:.0f} % of "
        f"its windows ({count} of {windows})."
    )


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


def sensors(devices: Sequence[DeviceResults], modalities: Sequence[str]) -> str:
    """Per device and modality: share of windows missing, and quality."""
    height = 1.0 + 0.38 * max(1, len(devices))
    made, (left, right) = style.figure(7.4, height, columns=2)
    names = [d.name for d in devices]
    table = [[_PERCENT * d.missing.get(m, 0.0) for m in modalities] for d in devices]
    heat(left, np.array(table, float), rows=names, columns=modalities, shades=style.WARM, text="{:.0f} %")
    left.set_title("windows without this modality", fontsize=11)
    table = [[d.quality.get(m, np.nan) for m in modalities] for d in devices]
    heat(
        right,
        np.array(table, float),
        rows=style.row_names(names, 1),
        columns=modalities,
        shades=style.SHADES,
        text="{:.2f}",
    )
    right.set_title("quality of the rest", fontsize=11)
    return style.svg(made, "sensors")


def confusion(counted: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    """Confusion matrix. Rows: true class; columns: predicted class."""
    made, (axes,) = style.figure(5.2, 4.4)
    counts = np.array(counted, float)
    share = _PERCENT * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shown = np.where(counts > 0, share, np.nan)
    heat(axes, shown, rows=labels, columns=labels, shades=style.SHADES, text="{:.0f}")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    return style.svg(made, "confusion")


def timeline(observer: ObserverResults, labels: Sequence[str]) -> str:
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


def _stride(observer: ObserverResults) -> float:
    gaps = np.diff([p.t for p in observer.predictions])
    return float(np.median(gaps)) if len(gaps) else 1.0


def _box(x: float, y: float, width: float, height: float, colour: str) -> Patch:
    return Rectangle((x, y), width, height, facecolor=colour, edgecolor="none", alpha=0.9)
