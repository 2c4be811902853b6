"""A second data set under quantity imbalance: handwritten digits beside spoken ones."""

from dataclasses import replace
from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.part import Line, Part, line
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF

_METHODS: Final = (v.FC, v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.IS)
_ROUNDS: Final = 20


def _line(method: str) -> Line:
    flow = v.CLEAN if method == v.FC else v.HALF
    made = line(method, HALF, flow, v.quantity(method, **v.AV_MNIST), rounds=_ROUNDS)
    return replace(made, spec=replace(made.spec, fleet="av-mnist"))


PART: Final = Part(
    name="av_mnist",
    place=9,
    title="a second data set, handwritten and spoken digits",
    variants=tuple(map(_line, _METHODS)),
    versus=tuple((v.PNR, method) for method in _METHODS if method != v.PNR),
    by_default=False,
)
