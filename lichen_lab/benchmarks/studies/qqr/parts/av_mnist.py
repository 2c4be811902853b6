"""A second data set under quantity imbalance: handwritten digits beside spoken ones."""

from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.part import Part, Variant, accuracies
from lichen_lab.benchmarks.studies.qqr.parts.quantity import HALF
from lichen_lab.benchmarks.studies.qqr.settings import Setting

_METHODS: Final = (v.FC, v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.IS)
_ROUNDS: Final = 20


def _setting(method: str) -> Setting:
    flow = v.CLEAN if method == v.FC else v.HALF
    config = v.quantity(method, **v.AV_MNIST)
    return Setting(dataset="av-mnist", flow=flow, config=config, rounds=_ROUNDS)


PART: Final = Part(
    name="av_mnist",
    place=9,
    title="a second data set, handwritten and spoken digits",
    variants=tuple(Variant(method, _setting(method), HALF) for method in _METHODS),
    rows=accuracies,
    versus=tuple((v.PNR, method) for method in _METHODS if method != v.PNR),
    by_default=False,
)
