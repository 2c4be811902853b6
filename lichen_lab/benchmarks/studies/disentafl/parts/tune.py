"""Learning rates and options of every method, on seeds and windows that no table uses."""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.variants import Part
from lichen_lab.benchmarks.study.part import grid_rows, in_words, lines

RATES: Final = Part(
    name="tune",
    place=9,
    title="learning rates, on seeds and windows of their own",
    variants=tuple(
        v.line(fleet, title, f"lr {lr:g}", lr=lr, tuning=True)
        for fleet in v.FLEETS
        for title in v.METHODS
        for lr in v.GRID
    ),
    rows=partial(
        grid_rows,
        under="grid",
        rate=lambda line: line.spec.setting.lr,
        chosen=lambda line: v.BEST_LR[line.dataset][line.method],
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
OPTIONS: Final = Part(
    name="options",
    place=8,
    title="options of each method, on seeds and windows of their own",
    variants=tuple(
        line
        for fleet in v.FLEETS
        for title, tried in v.TRIED.items()
        for line in lines(partial(v.line, fleet, tuning=True), (title,), in_words(({}, *tried)))
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
