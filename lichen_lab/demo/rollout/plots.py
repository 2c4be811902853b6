"""The rollouts' figure: version and accuracy of each watch over time."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from lichen_lab.demo.rollout.results import COMMITTED, ROLLED_BACK, TRIAL, RolloutResults, WatchPrediction
from lichen_lab.simulation.reporting import style

_AROUND_S: Final = 2.5
"""Half the span of a share, in seconds: half a turn of a recording."""
_STEP_S: Final = 0.5
_MIN_ROWS: Final = 30
"""A share of fewer windows is not drawn."""
_BEFORE_S: Final = 15.0
"""Seconds shown before the bad model is rolled out."""
_HEIGHT: Final = 0.62
_GAP_S: Final = 3.0
"""A bar ends if a watch is silent for longer."""
_PERCENT: Final = 100.0


def colours(results: RolloutResults) -> dict[int, str]:
    """Version -> colour."""
    found = {results.before: style.BLUE}
    for release, colour in ((results.bad, style.RED), (results.good, style.GREEN)):
        if release is not None:
            found[release.version] = colour
    return found


def stretches(rows: Sequence[WatchPrediction]) -> Iterator[tuple[int, float, float]]:
    """Version, begin and end of each time in which a watch predicted with one version."""
    for version, group in groupby(rows, key=lambda row: row.version):
        times = [row.at for row in group]
        begin = times[0]
        for before, after in pairwise(times):
            if after - before > _GAP_S:
                yield version, begin, before
                begin = after
        yield version, begin, times[-1]


def settled(results: RolloutResults, device: str, version: int, begin: float, end: float) -> float:
    """End of a stretch's trial; its begin if it was none."""
    found = [m for m in results.moves if m.device == device and m.version == version and m.phase != TRIAL]
    if not found:
        tried = any(m.device == device and m.version == version for m in results.moves)
        return end if tried else begin
    kept = [m.at for m in found if m.phase == COMMITTED]
    return min(max(kept[0], begin), end) if kept else end


def timeline(results: RolloutResults) -> str:
    """Above, a bar a watch, coloured by version and hatched while it was on trial; below, shares right."""
    made, (upper, lower) = style.figure(9.6, 1.9 + 0.42 * len(results.watchers) + 1.5, rows=2)
    _bars(upper, results)
    _shares(lower, results)
    times = [row.at for rows in results.said.values() for row in rows]
    if times:
        begin = min(times) if results.bad is None else max(min(times), results.bad.began - _BEFORE_S)
        for axes in (upper, lower):
            axes.set_xlim(begin, max(times) + 0.5)
    return style.svg(made, "rollout")


def _bars(axes: Axes, results: RolloutResults) -> None:
    shades = colours(results)
    for place, watcher in enumerate(results.watchers):
        rows = results.said.get(watcher.name, [])
        for version, begin, end in stretches(rows):
            colour = shades.get(version, style.GREY)
            until = settled(results, watcher.name, version, begin, end)
            if until > begin:
                axes.barh(
                    place,
                    until - begin,
                    left=begin,
                    height=_HEIGHT,
                    facecolor="none",
                    edgecolor=colour,
                    hatch="////",
                    lw=0,
                )
            if until < end:
                axes.barh(place, end - until, left=until, height=_HEIGHT, color=colour, lw=0)
    places = {watcher.name: place for place, watcher in enumerate(results.watchers)}
    for move in results.decisions():
        good = move.phase == COMMITTED
        shape, colour = ("o", style.GREEN) if good else ("X", style.RED)
        axes.plot(move.at, places[move.device], shape, ms=9, color=colour, markeredgecolor="white", zorder=5)
    _begins(axes, results, words=True)
    axes.set_yticks(range(len(results.watchers)), [f"{one.name} ({one.site})" for one in results.watchers])
    axes.set_ylim(len(results.watchers) - 0.45, -0.55)
    axes.tick_params(labelbottom=False)
    axes.spines["left"].set_visible(False)
    _legend(axes, results)


def _legend(axes: Axes, results: RolloutResults) -> None:
    handles = [Patch(color=colour, label=f"version {v}") for v, colour in colours(results).items()]
    handles.append(Patch(facecolor="none", edgecolor=style.GREY, hatch="////", lw=0, label="on trial"))
    axes.legend(
        handles=handles,
        ncols=style.legend_columns(len(handles)),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.03),
    )


def _begins(axes: Axes, results: RolloutResults, *, words: bool) -> None:
    for release, name in ((results.bad, "the bad one"), (results.good, "the newest")):
        if release is None:
            continue
        axes.axvline(release.began, color=style.INK, lw=1, ls=":")
        if words:
            axes.annotate(
                name if style.on_phone() else f"version {release.version}, {name}",
                (release.began, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-3 if release is results.bad else 3, 4),
                textcoords="offset points",
                ha="right" if release is results.bad else "left",
                fontsize=9.5,
            )


def _shares(axes: Axes, results: RolloutResults) -> None:
    for watcher in results.watchers:
        canary = watcher.name == results.canary
        points = list(shares(results.said.get(watcher.name, [])))
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=style.OCHRE if canary else style.GREY,
                lw=2.4 if canary else 1.2,
                alpha=1.0 if canary else 0.7,
                label=f"{watcher.name}, the canary" if canary else None,
                zorder=3 if canary else 2,
            )
    others = len(results.others)
    axes.plot([], [], color=style.GREY, lw=1.2, label=f"the other {others}" if others > 1 else "the other")
    _begins(axes, results, words=False)
    axes.set_ylim(0, 104)
    axes.set_ylabel("windows right, %")
    axes.set_xlabel("seconds of the demo")
    axes.grid(axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=2)


def shares(rows: Sequence[WatchPrediction]) -> Iterator[tuple[float, float]]:
    """(time, percent right around it); NaN between two versions, so that a line breaks."""
    for _, group in groupby(rows, key=lambda row: row.version):
        known = [row for row in group if row.right is not None]
        if not known:
            continue
        times = np.array([row.at for row in known])
        right = np.array([bool(row.right) for row in known], float)
        for at in np.arange(times[0], times[-1], _STEP_S):
            near = np.abs(times - at) <= _AROUND_S
            if near.sum() >= min(_MIN_ROWS, len(known)):
                yield float(at), _PERCENT * float(right[near].mean())
        yield float(times[-1]), float("nan")


PARTS: Final = {"rollout": ("lichen_lab.demo.rollout", "section.html")}
"""The section's template."""
_WORDS: Final = {COMMITTED: "kept it", ROLLED_BACK: "dropped it by itself"}


def figures(results: RolloutResults | None) -> Mapping[str, str]:
    """The section's figure; none if no watch predicted."""
    return {} if results is None or not any(results.said.values()) else {"rollout": timeline(results)}


def template_values(results: RolloutResults | None) -> Mapping[str, Any]:
    """Values of the section's template."""
    return {"rollout": results, "outcome": _outcome, "rows": _rows(results) if results else []}


def _outcome(phase: str) -> str:
    return _WORDS.get(phase, phase.replace("_", " "))


def _rows(results: RolloutResults) -> list[dict[str, object]]:
    """A row for each device with a trial in the last two rollouts."""
    found: list[dict[str, object]] = []
    for release in (results.bad, results.good):
        if release is None:
            continue
        for watcher in results.watchers:
            move = results.last(watcher.name, release.version)
            if move is not None:
                answered = results.windows(watcher.name, release.version)
                found.append({"release": release, "watcher": watcher, "move": move, "answered": answered})
    return found
