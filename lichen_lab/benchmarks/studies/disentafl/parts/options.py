"""Methods with other options of their own, on seeds and windows that no table uses."""

from typing import Final

from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.part import Part
from lichen_lab.benchmarks.study.part import condition_text

PART: Final = Part(
    name="options",
    place=8,
    title="options of each method, on seeds and windows of their own",
    variants=tuple(
        v.line(fleet, title, condition_text(options), tuning=True, **options)
        for fleet in v.FLEETS
        for title, tried in v.TRIED.items()
        for options in ({}, *tried)
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
