"""Every method over the same grid of learning rates, on seeds and windows that no table uses."""

from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.part import Part, Results

BEST: Final = "best learning rate of the grid"
CHOSEN: Final = "learning rate in the tables"


def _under(lr: float) -> str:
    return f"lr {lr:g}"


def _rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for fleet in v.FLEETS:
        for title in v.METHODS:
            tried = {
                lr: fmean(one.mean for one in runs.values())
                for lr in v.GRID
                if (runs := results.of(title, _under(lr), fleet))
            }
            if tried:
                shown = v.line(fleet, title, "grid")
                rows += results.row(shown, BEST, [max(tried, key=lambda lr: tried[lr])])
                rows += results.row(shown, CHOSEN, [v.lr_of(fleet, title)])
    return rows


PART: Final = Part(
    name="tune",
    place=9,
    title="learning rates, on seeds and windows of their own",
    variants=tuple(
        v.line(fleet, title, _under(lr), lr=lr, tuning=True)
        for fleet in v.FLEETS
        for title in v.METHODS
        for lr in v.GRID
    ),
    rows=_rows,
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
