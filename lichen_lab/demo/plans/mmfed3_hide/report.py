"""The report of the demo on knowledge graphs: its drawings, each from the results alone, and its values."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes

from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.mmfed3_hide.collect_results import SHOWN
from lichen_lab.demo.plans.mmfed3_hide.devices import JUDGE_SHARE, TEXT_SHARE, TOP_K
from lichen_lab.demo.plans.mmfed3_hide.results import Gateway, GraphResults
from lichen_lab.simulation.reporting import style

_KB: Final = 1000.0
_COLUMNS: Final = 2


def by_round(results: GraphResults) -> str:
    """MRR by round of each gateway, with the fleet and alone."""
    rows = -(-len(results.gateways) // _COLUMNS)
    made, all_axes = style.figure(9.4, 2.7 * rows + 0.2, columns=_COLUMNS, rows=rows)
    for axes in all_axes[len(results.gateways) :]:
        axes.set_visible(False)
    for number, (axes, gateway) in enumerate(zip(all_axes, results.gateways, strict=False)):
        _curves(axes, gateway, style.CLASSES[number % len(style.CLASSES)])
        axes.set_title(gateway.name, fontsize=11)
        axes.set_xlim(0.5, len(results.rounds) + 0.5)
        axes.set_ylim(0, _top(results))
        style.rounds_axis(axes, "" if number % _COLUMNS else "MRR")
        if gateway.later and results.grown_after is not None:
            _mark(axes, results.grown_after + 0.5, f"{gateway.later} further facts")
        if gateway.late and results.joined_after is not None:
            _mark(axes, results.joined_after + 0.5, "joins")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right", fontsize=9)
    return style.svg(made, "byround")


def _top(results: GraphResults) -> float:
    """One scale for all."""
    known = [turn.mrr for one in results.gateways for turn in one.turns if turn.mrr is not None]
    return min(
        1.0, 1.15 * max([*known, *(mrr for one in results.gateways for mrr in one.alone.values()), 0.1])
    )


def _curves(axes: Axes, gateway: Gateway, colour: str) -> None:
    known = [(turn.round, turn.mrr) for turn in gateway.turns if turn.mrr is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=colour, lw=2.4, marker="o", ms=3.5, label="with the fleet")
    if gateway.alone:
        alone = sorted(gateway.alone.items())
        axes.plot(*zip(*alone, strict=True), color=style.GREY, lw=1.6, ls="--", label="by itself")


def _mark(axes: Axes, at: float, words: str) -> None:
    axes.axvline(at, color=style.INK, lw=1, ls=":")
    axes.annotate(words, (at, 0.04), xytext=(-5, 0), textcoords="offset points", ha="right", fontsize=9)


def bytes_by_round(results: GraphResults) -> str:
    """Bytes of updates and downloads by round, beside all rows in float32."""
    made, all_axes = style.figure(9.4, 3.0, columns=2)
    for axes, way in zip(all_axes, ("up", "down"), strict=True):
        for number, gateway in enumerate(results.gateways):
            sizes = [(turn.round, getattr(turn, way) / _KB) for turn in gateway.turns]
            if sizes:
                colour = style.CLASSES[number % len(style.CLASSES)]
                axes.plot(
                    *zip(*sizes, strict=True), color=colour, lw=1.8, marker="o", ms=3, label=gateway.name
                )
        whole = [turn.float32 / _KB for gateway in results.gateways for turn in gateway.turns]
        if whole:
            axes.axhspan(min(whole), max(whole), color=style.OCHRE, alpha=0.25, lw=0)
            axes.axhline(
                float(np.mean(whole)), color=style.OCHRE, lw=1.4, ls="--", label="all rows in float32"
            )
        axes.set_title(way, fontsize=11)
        axes.set_ylim(bottom=0)
        style.rounds_axis(axes, "kB a gateway and round" if way == "up" else "")
    if all_axes[0].get_legend_handles_labels()[0]:
        all_axes[0].legend(
            ncols=style.legend_columns(3),
            loc="upper left",
            bbox_to_anchor=(0.0, -0.2),
            fontsize=9,
            handlelength=1.4,
        )
    return style.svg(made, "bytes")


def judged(results: GraphResults) -> str:
    """MRR on held-out facts: with the fleet, and alone."""
    made, (axes,) = style.figure(7.4, 0.9 + 0.55 * len(results.gateways))
    for row, gateway in enumerate(results.gateways):
        pair = (gateway.scores, gateway.scores_alone)
        for scores, colour, shift in zip(pair, (style.GREEN, style.GREY), (-0.19, 0.19), strict=True):
            if scores is not None:
                axes.barh(row + shift, scores.mrr, 0.34, color=colour)
                style.number_beside(axes, f"{scores.mrr:.3f}", scores.mrr, row + shift)
    axes.set_xlim(0, 1)
    names = [gateway.name for gateway in results.gateways]
    style.rows_axis(axes, names, "MRR; green: with the fleet, grey: by itself")
    return style.svg(made, "judged")


def words(name: str) -> str:
    """A name as people write it."""
    return name.replace("_", " ")


def figures(results: GraphResults) -> Mapping[str, str]:
    """All figures."""
    return {
        "byround": by_round(results),
        "bytes": bytes_by_round(results),
        "judged": judged(results),
    }


def template_values(results: GraphResults) -> Mapping[str, Any]:
    """Further values of the template."""
    return {
        "ups": results.share(lambda turn: turn.up),
        "downs": results.share(lambda turn: turn.down),
        "text_share": TEXT_SHARE,
        "judge_share": JUDGE_SHARE,
        "top_k": TOP_K,
        "shown": SHOWN,
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.mmfed3_hide", figures, template_values, {"words": words})
