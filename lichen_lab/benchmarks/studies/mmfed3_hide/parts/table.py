"""The main table: every way to learn with every replacement of missing features."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Part
from lichen_lab.benchmarks.study.part import least, lines

UNDER: Final = "r = 50 %"

PART: Final = Part(
    name="table",
    place=1,
    title="ways to learn and ways to fill absent features, half of the features there",
    variants=lines(v.line, v.PLACES, {UNDER: {}}),
    versus=tuple((v.OURS, theirs) for theirs in (v.MMFEDE, v.MMFEDE_HIDE, v.MMFED3, v.FEDE, v.S_IND)),
    goals=tuple(
        Goal(least(theirs), 0.0, above=True, setting=UNDER, method=v.OURS, dataset=BUSY)
        for theirs in (v.MMFEDE, v.FEDE, v.S_IND)
    ),
)
