"""Quantity imbalance, the paper's setting: in half of the rounds 90 % of the windows lack a modality.

Also in every round, on a second data set (handwritten digits beside spoken ones), and with each method at its
best learning rate of the part ``tune``.
"""

from typing import Final

from lichen_lab.benchmarks.result import Goal
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.settings import StreamConditions
from lichen_lab.benchmarks.studies.qqr.variants import ACCURACY, Line, Part, line
from lichen_lab.benchmarks.study.part import above

HALF: Final = "90 % missing in half of the rounds"
EVERY: Final = "90 % missing in every round"


def under(rule: str) -> str:
    """The conditions as text."""
    return f"{HALF}, {rule}"


def flow_of(method: str, imbalanced: StreamConditions = v.HALF) -> StreamConditions:
    """The stream of a method; ``FC`` is the one without missing windows."""
    return v.CLEAN if method == v.FC else imbalanced


def _against(ours: str, methods: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((ours, method) for method in methods if method != ours)


def _variant(method: str, rule: str) -> Line:
    # Added here, so that the part `dead_sensor` finds its runs in the cache.
    probes = (("fillings",) if method == v.FC else ("dead_sensor",)) if rule == v.NORMALISED else ()
    return line(method, under(rule), flow_of(method), v.quantity(method, rule), *probes)


_METHODS: Final = tuple(v.QUANTITY)
_LITERALLY: Final = (v.FC, v.PNR, v.ZP_INPUT, v.IS)
"""The paper's own, and both kinds of padding."""
PART: Final = Part(
    name="quantity",
    place=1,
    title="a modality is missing while training: prototypes, padding, imputation, dropout, waiting",
    variants=(
        *(_variant(method, v.NORMALISED) for method in _METHODS),
        *(_variant(method, v.LITERAL) for method in _LITERALLY),
    ),
    versus=_against(v.PNR, _METHODS),
    goals=(
        Goal(ACCURACY, 87.5, above=True, setting=under(v.NORMALISED), method=v.PNR),
        Goal(above(v.ZP_INPUT), 1.0, above=True, setting=under(v.NORMALISED), method=v.PNR),
        Goal(above(v.IS), 2.0, above=True, setting=under(v.NORMALISED), method=v.PNR),
    ),
)
_IN_EVERY: Final = (v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.MEAN, v.DROPOUT, v.IS)
EVERY_ROUND: Final = Part(
    name="every_round",
    place=2,
    title="a modality is missing in every round",
    variants=tuple(line(method, EVERY, v.EVERY, v.quantity(method), "dead_sensor") for method in _IN_EVERY),
    versus=_against(v.PNR, _IN_EVERY),
    goals=(Goal(above(v.ZP_INPUT), 0.0, above=True, setting=EVERY, method=v.PNR),),
)
"""In no round are more than a tenth of the windows whole."""
_DIGITS: Final = (v.FC, v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.IS)
AV_MNIST: Final = Part(
    name="av_mnist",
    place=9,
    title="a second data set, handwritten and spoken digits",
    variants=tuple(
        line(method, HALF, flow_of(method), v.quantity(method), fleet="av-mnist", rounds=20)
        for method in _DIGITS
    ),
    versus=_against(v.PNR, _DIGITS),
    by_default=False,
)


def _at_best(method: str, words: str, imbalanced: StreamConditions) -> Line:
    config = v.quantity(method, lr=v.BEST_RATES[method])
    return line(method, f"{words}, each at its best learning rate", flow_of(method, imbalanced), config)


RATES: Final = Part(
    name="rates",
    place=20,
    title="a modality is missing while training, each method at its best learning rate",
    variants=tuple(
        _at_best(method, words, flow)
        for words, flow in ((HALF, v.HALF), (EVERY, v.EVERY))
        for method in _METHODS
    ),
    versus=_against(v.PNR, _METHODS),
    by_default=False,
)
