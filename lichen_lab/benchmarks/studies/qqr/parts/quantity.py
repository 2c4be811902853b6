"""Quantity imbalance, the paper's setting: in half of the rounds 90 % of the windows lack a modality."""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.part import ACCURACY, Line, Part, line
from lichen_lab.benchmarks.study.part import above

HALF: Final = "90 % missing in half of the rounds"


def under(rule: str) -> str:
    """The conditions in words."""
    return f"{HALF}, {rule}"


def _variant(method: str, rule: str) -> Line:
    flow = v.CLEAN if method == v.FC else v.HALF
    # Asked here too, so that the part `dead_sensor` finds its runs made.
    probes = (("fillings",) if method == v.FC else ("dead_sensor",)) if rule == v.NORMALISED else ()
    return line(method, under(rule), flow, v.quantity(method, rule), *probes)


_LITERALLY: Final = (v.FC, v.PNR, v.ZP_INPUT, v.IS)
"""The paper's own, and both kinds of padding."""

PART: Final = Part(
    name="quantity",
    place=1,
    title="a modality is missing while training: prototypes, padding, imputation, dropout, waiting",
    variants=(
        *(_variant(method, v.NORMALISED) for method in v.QUANTITY),
        *(_variant(method, v.LITERAL) for method in _LITERALLY),
    ),
    versus=tuple((v.PNR, method) for method in v.QUANTITY if method != v.PNR),
    goals=(
        Goal(ACCURACY, 87.5, above=True, setting=under(v.NORMALISED), method=v.PNR),
        Goal(above(v.ZP_INPUT), 1.0, above=True, setting=under(v.NORMALISED), method=v.PNR),
        Goal(above(v.IS), 2.0, above=True, setting=under(v.NORMALISED), method=v.PNR),
    ),
)

EVERY: Final = "90 % missing in every round"
_IN_EVERY: Final = (v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.MEAN, v.DROPOUT, v.IS)

EVERY_ROUND: Final = Part(
    name="every_round",
    place=2,
    title="a modality is missing in every round",
    variants=tuple(line(method, EVERY, v.EVERY, v.quantity(method), "dead_sensor") for method in _IN_EVERY),
    versus=tuple((v.PNR, method) for method in _IN_EVERY if method != v.PNR),
    goals=(Goal(above(v.ZP_INPUT), 0.0, above=True, setting=EVERY, method=v.PNR),),
)
"""No round shows whole windows to more than a tenth."""
