"""The same when every round is affected: no round shows whole windows to more than a tenth."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.part import Part, line
from lichen_lab.benchmarks.study.part import above

EVERY: Final = "90 % missing in every round"
_METHODS: Final = (v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.MEAN, v.DROPOUT, v.IS)

PART: Final = Part(
    name="every_round",
    place=2,
    title="a modality is missing in every round",
    variants=tuple(line(method, EVERY, v.EVERY, v.quantity(method), "dead_sensor") for method in _METHODS),
    versus=tuple((v.PNR, method) for method in _METHODS if method != v.PNR),
    goals=(Goal(above(v.ZP_INPUT), 0.0, above=True, setting=EVERY, method=v.PNR),),
)
