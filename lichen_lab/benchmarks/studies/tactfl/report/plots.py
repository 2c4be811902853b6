"""The page's own figure, from a part's runs alone."""

import numpy as np

from lichen_lab.benchmarks.studies.tactfl import settings
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import Results
from lichen_lab.benchmarks.study.report.plots import below, look
from lichen_lab.simulation.reporting import style

TRAINED = frozenset(title for title, line in v.LINES.items() if line.end == settings.TRAINED)
"""Titles of lines that show versions as trained."""


def shares(results: Results, under: str, name: str) -> str:
    """What each device weighs, mean over rounds, encoders and seeds; 1 is as much as any other."""
    made, (axes,) = style.figure(6.4, 3.6)
    place = 0
    for variant, runs in results.pairs():
        told = [one for one in runs.values() if one.shares]
        if variant.under != under or variant.method not in TRAINED or not told:
            continue
        names = sorted(set().union(*(one.shares for one in told)))
        mean = [np.mean([one.shares[name] for one in told if name in one.shares]) for name in names]
        colour, dash = look(place)
        place += 1
        axes.plot(range(len(names)), mean, dash, color=colour, marker="o", ms=6, label=variant.method)
        kinds = told[0].kinds
        words = [f"{device}\n{kinds[device]}" if kinds.get(device) else device for device in names]
        axes.set_xticks(range(len(names)), words, fontsize=8.5)
    axes.axhline(1, color=style.GREY, lw=1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("weight, shares of an equal one")
    axes.grid(axis="y")
    below(axes)
    return style.svg(made, name)
