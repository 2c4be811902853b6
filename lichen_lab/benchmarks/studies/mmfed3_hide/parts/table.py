"""The main table: every way to learn with every replacement of missing features."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.fleets import BUSY
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Part
from lichen_lab.benchmarks.study.part import least, lines

UNDER: Final = "r = 50 %"

_HIDE: Final = ((v.MMFEDE_HIDE, v.MMFEDE), (v.OURS, v.MMFED3))
"""What HidE, the paper's main factor, is worth by seed, without and with dual distillation."""

PART: Final = Part(
    name="table",
    place=1,
    title="ways to learn and ways to fill absent features, half of the features there",
    variants=lines(v.line, v.PLACES, {UNDER: {}}),
    versus=(
        *((v.OURS, theirs) for theirs in (v.MMFEDE, v.MMFEDE_HIDE, v.FEDE, v.S_IND)),
        *_HIDE,
        (v.MMFED3, v.MMFEDE),
    ),
    goals=tuple(
        Goal(least(theirs), 0.0, above=True, setting=UNDER, method=v.OURS, dataset=BUSY)
        for theirs in (v.MMFEDE, v.FEDE, v.S_IND)
    ),
)
