"""The main tables: asked labels against random ones, and the rule against its parts."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.labels import variants as v
from lichen_lab.benchmarks.studies.labels.settings import DATASETS
from lichen_lab.benchmarks.studies.labels.variants import Part
from lichen_lab.benchmarks.study.part import above

HALVES: Final = ((15, 30), (30, 60))
"""Asked labels, and twice as many random ones."""
_ALONE: Final = "the rule and its parts"
_PARTS: Final = ("margin", "distance")
"""The rule's parts alone; the part ``linear`` has the rules of the literature, too."""

CURVE: Final = Part(
    name="curve",
    place=1,
    title="asked labels against random ones, by the number of labels on a device",
    variants=v.everywhere((rule, labels) for rule in (v.ASKED, v.RANDOM) for labels in v.BUDGETS),
    versus=(
        *((v.title(v.ASKED, labels), v.title(v.RANDOM, labels)) for labels in v.BUDGETS),
        *((v.title(v.ASKED, half), v.title(v.RANDOM, whole)) for half, whole in HALVES),
    ),
    goals=tuple(
        Goal(
            f"{words}{above(v.title(v.RANDOM, 2 * v.USUAL))}",
            0.0,
            above=True,
            setting=v.TABLE,
            method=v.title(v.ASKED, v.USUAL),
            dataset=dataset,
        )
        for dataset in DATASETS.values()
        for words in ("", v.OWN_WORDS)
    ),
)
RULES: Final = Part(
    name="rules",
    place=2,
    title="30 labels a device: the rule, its parts alone, random",
    variants=v.everywhere(((rule, v.USUAL) for rule in (v.ASKED, v.RANDOM, *_PARTS)), _ALONE),
    versus=tuple((v.title(v.ASKED, v.USUAL), v.title(rule, v.USUAL)) for rule in (v.RANDOM, *_PARTS)),
)
