"""The page's own figure, from a part's runs alone."""

from typing import Final

from matplotlib.ticker import FuncFormatter

from lichen_lab.benchmarks.studies.qqr.part import Results
from lichen_lab.benchmarks.studies.qqr.parts.bytes import bytes_at, smoothed
from lichen_lab.benchmarks.study.report.plots import below, look
from lichen_lab.simulation.reporting import style

ROOM: Final = 3.0
"""Percentage points left free around what is shown."""


def against_bytes(results: Results, name: str) -> str:
    """Accuracy over bytes sent up, one line a variant, bytes on a logarithmic axis."""
    made, (axes,) = style.figure(6.4, 4.3)
    top = 0.0
    for place, (variant, runs) in enumerate(results.pairs()):
        colour, dash = look(place)
        reached = smoothed(runs)
        sent = [bytes_at(runs, round_) / 1e6 for round_ in reached]
        axes.plot(
            sent, list(reached.values()), dash, color=colour, lw=2, marker="o", ms=3.5, label=variant.method
        )
        top = max(top, *reached.values())
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda megabytes, _: f"{megabytes:g}"))
    axes.set_ylim(max(0.0, top - 30), min(100.0, top + ROOM))
    axes.set_xlabel("MB sent up by all devices (logarithmic)")
    axes.set_ylabel("test accuracy, %")
    axes.grid(which="major")
    below(axes)
    return style.svg(made, name)
