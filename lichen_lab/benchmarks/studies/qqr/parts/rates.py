"""Quantity imbalance again, each method at the learning rate that is best for it (part ``tune``)."""

from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.part import Line, Part, line
from lichen_lab.benchmarks.studies.qqr.parts.quantity import EVERY, HALF

_FLOWS: Final = {HALF: v.HALF, EVERY: v.EVERY}


def _variant(method: str, under: str) -> Line:
    flow = v.CLEAN if method == v.FC else _FLOWS[under]
    config = v.quantity(method, lr=v.BEST_RATES[method])
    return line(method, f"{under}, each at its best learning rate", flow, config)


PART: Final = Part(
    name="rates",
    place=20,
    title="a modality is missing while training, each method at its best learning rate",
    variants=tuple(_variant(method, under) for under in _FLOWS for method in v.QUANTITY),
    versus=tuple((v.PNR, method) for method in v.QUANTITY if method != v.PNR),
    by_default=False,
)
