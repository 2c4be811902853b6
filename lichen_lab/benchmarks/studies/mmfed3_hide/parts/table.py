"""The main table: every way to learn with every way to fill absent features."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.mmfed3_hide import names as n
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY
from lichen_lab.benchmarks.studies.mmfed3_hide.part import Part
from lichen_lab.benchmarks.study.part import least

UNDER: Final = "r = 50 %"

PART: Final = Part(
    name="table",
    place=1,
    title="ways to learn and ways to fill absent features, half of the features there",
    variants=tuple(v.usual(title, UNDER) for title in n.PLACES),
    versus=(
        (n.OURS, n.MMFEDE),
        (n.OURS, n.MMFEDE_HIDE),
        (n.OURS, n.MMFED3),
        (n.OURS, n.FEDE),
        (n.OURS, n.S_IND),
    ),
    goals=(
        Goal(least(n.MMFEDE), 0.0, above=True, setting=UNDER, method=n.OURS, dataset=BUSY),
        Goal(least(n.FEDE), 0.0, above=True, setting=UNDER, method=n.OURS, dataset=BUSY),
        Goal(least(n.S_IND), 0.0, above=True, setting=UNDER, method=n.OURS, dataset=BUSY),
    ),
)
