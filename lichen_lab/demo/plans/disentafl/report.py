"""The report of the routed demo: its drawings, each from the results alone, and its values."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from lichen_lab.demo.figures import window_figures
from lichen_lab.demo.page import DemoPage, percent
from lichen_lab.demo.plans.disentafl.devices import IN_WORDS
from lichen_lab.demo.plans.disentafl.results import DisentaflResults, RoutedObserver, WatchResults
from lichen_lab.simulation.reporting import style
from protocol.tasks.task import LABEL

_KINDS: Final = {
    "base": "encoder of a sensor",
    "domain": "its experts of a domain",
    "expert": "expert (sensor, target)",
    "decoder": "decoder of a target",
    "last": "its last layer",
    "gate": "gate of the domains",
}
_COLOURS: Final = ("#eef1ee", style.GREEN, "#8fc9b1", style.OCHRE, style.BLUE, "#a9c3e8", style.GREY)
_METRICS: Final = {"accuracy": LABEL, "arm/accuracy": "arm", "speed/r2": "speed"}
_SIDES: Final = {"with the fleet": style.GREEN, "alone": style.OCHRE}
_PERCENT: Final = 100.0


def _kind(blob: str) -> int:
    """Index of its colour; 0 is a blob that the device does not hold."""
    return 1 + list(_KINDS).index(blob.split("/", maxsplit=1)[0])


def ordered(results: DisentaflResults) -> list[str]:
    """All blobs, grouped by kind."""
    return sorted(results.blobs, key=lambda name: (_kind(name), name))


def _tiles(axes: Axes, rows: list[tuple[str, set[str]]], blobs: list[str]) -> None:
    """A tile for each blob that a row holds, coloured by its kind."""
    held = np.array([[_kind(blob) if blob in own else 0 for blob in blobs] for _, own in rows], float)
    shades = ListedColormap(_COLOURS)
    axes.pcolormesh(held, cmap=shades, vmin=-0.5, vmax=len(_COLOURS) - 0.5, edgecolors="white", linewidth=1.2)
    axes.set_yticks(np.arange(len(rows)) + 0.5, [name for name, _ in rows])
    axes.set_xticks(np.arange(len(blobs)) + 0.5, [_short(blob) for blob in blobs], rotation=90, fontsize=7.5)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)


def _short(blob: str) -> str:
    return blob.replace("accelerometer", "acc").replace("gyroscope", "gyr").replace("_shared", "*")


def routes(results: DisentaflResults) -> str:
    """Which blobs each device holds at the end."""
    rows = [(device.name, set(device.moves[-1].route)) for device in results.trained if device.moves]
    made, (axes,) = style.figure(9.4, 1.9 + 0.34 * len(rows))
    _tiles(axes, rows, ordered(results))
    handles = [
        axes.scatter([], [], marker="s", color=_COLOURS[_kind(kind)], label=_KINDS[kind]) for kind in _KINDS
    ]
    axes.legend(
        handles=handles,
        ncols=style.legend_columns(6),
        loc="lower center",
        bbox_to_anchor=(0.45, 1.0),
        fontsize=8,
        handlelength=1,
    )
    return style.svg(made, "routes")


def gained(device: WatchResults, results: DisentaflResults) -> str:
    """The route of the device with a later sensor, round by round."""
    rows = [(f"round {move.round}", set(move.route)) for move in device.moves]
    made, (axes,) = style.figure(9.4, 1.3 + 0.19 * len(rows))
    _tiles(axes, rows, ordered(results))
    axes.tick_params(axis="y", labelsize=8)
    return style.svg(made, "gained")


def moved(results: DisentaflResults) -> str:
    """Bytes of a round, down and up, beside the supernet's."""
    rows = [d for d in results.trained if d.down is not None and d.up is not None]
    made, (axes,) = style.figure(7.4, 1.2 + 0.5 * (len(rows) + 1))
    at = np.arange(len(rows) + 1)
    down = np.array([*(d.down or 0 for d in rows), results.supernet], float) / 1000
    up = np.array([*(d.up or 0 for d in rows), results.supernet_up or 0], float) / 1000
    ways = (
        (down, -0.2, style.GREEN, "down: changed blobs of the route"),
        (up, 0.2, style.BLUE, "up: int8 deltas of the route"),
    )
    for sizes, shift, colour, label in ways:
        axes.barh(at + shift, sizes, 0.38, color=[*[colour] * len(rows), style.GREY], label=label)
        for row, kilobytes in enumerate(sizes):
            style.number_beside(axes, f"{kilobytes:.0f}", kilobytes, row + shift)
    style.rows_axis(axes, [*(d.name for d in rows), "all of the supernet"], "kB in a round, mean")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=style.legend_columns(2, 1), fontsize=9)
    return style.svg(made, "moved")


def scores(results: DisentaflResults) -> str:
    """By target: what each device reaches with the fleet and alone, and chance."""
    names = list(results.targets)
    rows = results.devices
    made, all_axes = style.figure(2.0 + 2.9 * len(names), 1.3 + 0.34 * len(rows), columns=len(names))
    for place, (axes, target) in enumerate(zip(all_axes, names, strict=True)):
        _duel(axes, rows, target)
        axes.axvline(_PERCENT * results.chance(target), color=style.FAINT, lw=1.5, ls=":")
        unit = "right, %" if results.targets[target] else "r2, hundredths"
        axes.set_title(IN_WORDS[target], fontsize=11)
        style.rows_axis(axes, style.row_names([d.name for d in rows], place), unit)
    handles = [
        all_axes[0].plot([], [], "o", color=colour, label=label)[0] for label, colour in _SIDES.items()
    ]
    all_axes[0].legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(-0.1, -0.42),
        ncols=style.legend_columns(2, 1),
        fontsize=9,
    )
    return style.svg(made, "scores")


def _duel(axes: Axes, rows: list[WatchResults], target: str) -> None:
    """A dot for each side, joined where a device has both."""
    for row, device in enumerate(rows):
        both = [device.scores.get(target), device.alone.get(target)]
        known = [_PERCENT * value for value in both if value is not None]
        axes.plot(known, [row] * len(known), color=style.FAINT, lw=2, zorder=0)
        for value, colour in zip(both, _SIDES.values(), strict=True):
            if value is not None:
                axes.plot(_PERCENT * value, row, "o", color=colour, ms=7.5, mew=0)


def by_round(results: DisentaflResults) -> str:
    """The whole supernet, evaluated after every round with both sensors."""
    made, (axes,) = style.figure(7.4, 3.4)
    for (metric, target), colour in zip(
        _METRICS.items(), (style.GREEN, style.BLUE, style.OCHRE), strict=True
    ):
        known = [(r.round, _PERCENT * r.metrics[metric]) for r in results.rounds if metric in r.metrics]
        if known:
            rounds, values = zip(*known, strict=True)
            unit = "right, %" if results.targets.get(target) else "r2, hundredths"
            axes.plot(
                rounds, values, color=colour, lw=2.2, marker="o", ms=4, label=f"{IN_WORDS[target]} ({unit})"
            )
    if results.plugged_after is not None:
        axes.axvline(results.plugged_after + 0.5, color=style.RED, lw=1.2, ls="--")
        axes.text(results.plugged_after + 0.6, 3, "a gyroscope is plugged in", fontsize=9)
    axes.set_ylim(0, 100)
    style.rounds_axis(axes, "")
    if axes.lines:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.06))
    return style.svg(made, "byround")


def speed(observer: RoutedObserver) -> str:
    """Turning speed: predicted by the observing device, and measured."""
    made, (axes,) = style.figure(7.4, 2.8)
    t = [at for at, _, _ in observer.values]
    true = [np.nan if value is None else value for _, _, value in observer.values]
    axes.plot(t, true, color=style.GREY, lw=1.6, label="measured by a gyroscope")
    axes.plot(
        t, [value for _, value, _ in observer.values], color=style.GREEN, lw=1.6, label="said without one"
    )
    axes.set_xlabel("seconds of the stream")
    axes.set_ylabel("turning speed, rad/s")
    axes.grid(axis="y")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=style.legend_columns(2, 1))
    return style.svg(made, "speed")


def figures(results: DisentaflResults) -> Mapping[str, str]:
    """All figures with data."""
    changed = plugged(results)
    drawn = {"byround": by_round(results), "scores": scores(results), **window_figures(results)}
    if results.blobs:
        drawn["moved"] = moved(results)
        drawn["routes"] = routes(results)
        if changed is not None and changed.moves:
            drawn["gained"] = gained(changed, results)
    if results.observer and results.observer.values:
        drawn["speed"] = speed(results.observer)
    return drawn


def plugged(results: DisentaflResults) -> WatchResults | None:
    """The device with a later sensor."""
    return next((device for device in results.devices if device.later), None)


def score(value: float | None, target: str, results: DisentaflResults) -> str:
    """A share in percent, or r2."""
    if value is None or results.targets[target]:
        return percent(value)
    return f"{value:.2f}"


def template_values(results: DisentaflResults) -> Mapping[str, Any]:
    """Further values of the template."""
    return {
        "words": IN_WORDS,
        "label": LABEL,
        "changed": plugged(results),
        "score": lambda value, target: score(value, target, results),
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.disentafl", figures, template_values)
