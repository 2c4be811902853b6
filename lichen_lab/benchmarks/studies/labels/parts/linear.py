"""The labels' worth without the noise of training: a linear classifier on the start model's features."""

from typing import Final

from lichen_lab.benchmarks.studies.labels import variants as v
from lichen_lab.benchmarks.studies.labels.parts.table import HALVES
from lichen_lab.benchmarks.studies.labels.variants import Part

UNDER: Final = "linear classifier"
_OTHERS: Final = tuple(rule for rule in v.RULES if rule not in {v.ASKED, v.RANDOM})

PART: Final = Part(
    name="linear",
    place=3,
    title="a linear classifier on the start model's features in place of the fleet's training",
    variants=v.everywhere(
        (
            *((rule, labels) for rule in (v.ASKED, v.RANDOM) for labels in v.BUDGETS),
            *((rule, v.USUAL) for rule in _OTHERS),
        ),
        UNDER,
        linear=True,
    ),
    versus=(
        *((v.title(v.ASKED, labels), v.title(v.RANDOM, labels)) for labels in v.BUDGETS),
        *((v.title(v.ASKED, half), v.title(v.RANDOM, whole)) for half, whole in HALVES),
        *((v.title(v.ASKED, v.USUAL), v.title(rule, v.USUAL)) for rule in _OTHERS),
    ),
    seeds=tuple(range(10)),
)
