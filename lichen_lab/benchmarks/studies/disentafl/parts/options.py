"""Methods with other options of their own, on seeds and windows that no table uses."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.part import Part, Variant, scores

_AS_IT_IS: Final = "as in the tables"


def _under(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items()) or _AS_IT_IS


PART: Final = Part(
    name="options",
    place=8,
    title="options of each method, on seeds and windows of their own",
    variants=tuple(
        Variant(title, v.one(fleet, title, tuning=True, **options), _under(options))
        for fleet in v.FLEETS
        for title, tried in v.TRIED.items()
        for options in ({}, *tried)
    ),
    rows=scores,
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
