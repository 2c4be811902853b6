"""Rules on seeds and people of their own, with a linear classifier."""

from typing import Final

from lichen_lab.benchmarks.studies.labels import variants as v
from lichen_lab.benchmarks.studies.labels.variants import Part

_LABELS: Final = (10, 15, 30)
_POOLS: Final = {"even pools": {}, "uneven pools": {"uneven": True}}

PART: Final = Part(
    name="tune",
    place=9,
    title="rules with a linear classifier, on seeds and people of their own",
    variants=tuple(
        line
        for under, people in _POOLS.items()
        for line in v.everywhere(
            ((rule, labels) for rule in v.RULES for labels in _LABELS),
            under,
            people=people,
            tuning=True,
            linear=True,
        )
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
