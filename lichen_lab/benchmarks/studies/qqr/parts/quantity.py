"""Quantity imbalance, the paper's setting: in half of the rounds 90 % of the windows lack a modality.

Also in every round, on a second data set (handwritten digits beside spoken ones), with each method at its
best learning rate of the part ``tune``, and all at twice the paper's.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.probes import ONLINE_LOSS
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, StreamConditions
from lichen_lab.benchmarks.studies.qqr.variants import ACCURACY, Line, Part, Results, line
from lichen_lab.benchmarks.study.part import above, usual

HALF: Final = "90 % missing in half of the rounds"
EVERY: Final = "90 % missing in every round"
_OWN_RATES: Final = ", each at its best learning rate"
BEST: Final = f"{HALF}{_OWN_RATES}"
_FASTER: Final = 0.16
LOSS_ROUNDS: Final = (5, 10, 15, 20, 25, 30, 35, 40)
"""Rounds up to which the online loss is shown."""


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
_DIGITS: Final = (v.FC, v.PNR, v.ZP_INPUT, v.ZP_FEATURE, v.MEAN, v.DROPOUT, v.IS)
_PAPERS_RATE: Final = v.ALL_METHODS["lr"]


def all_at(lr: float) -> str:
    """The conditions as text, with one learning rate for all."""
    return HALF if lr == _PAPERS_RATE else f"{HALF}, all at a learning rate of {lr:g}"


AV_MNIST: Final = Part(
    name="av_mnist",
    place=9,
    title="a second data set, handwritten and spoken digits, at three learning rates",
    variants=tuple(
        line(method, all_at(lr), flow_of(method), v.quantity(method, lr=lr), fleet="av-mnist", rounds=20)
        for lr in (_PAPERS_RATE, _FASTER, 2 * _FASTER)
        for method in _DIGITS
    ),
    versus=_against(v.PNR, _DIGITS),
    by_default=False,
)
"""No rate is chosen: 20 rounds at .08 are too few for some methods."""


def _at_best(method: str, words: str, imbalanced: StreamConditions) -> Line:
    config = v.quantity(method, lr=v.BEST_RATES[method])
    flow, probes = flow_of(method, imbalanced), (ONLINE_LOSS,) if imbalanced == v.HALF else ()
    return line(method, f"{words}{_OWN_RATES}", flow, config, *probes)


def _faster(method: str) -> Line:
    # On the people of the part `tune` two rates are alike for most methods; here they are not.
    return line(method, all_at(_FASTER), flow_of(method), v.quantity(method, lr=_FASTER), ONLINE_LOSS)


def loss_until(round_: int) -> str:
    """Metric: the log loss on each round's windows before it trains on them, summed up to a round."""
    return f"online loss, sum of the rounds to {round_}"


def _online_loss(outcome: QqrOutcome, round_: int) -> float | None:
    return outcome.probes.get(ONLINE_LOSS, {}).get(str(round_))


def online_rows(results: Results) -> list[ResultRow]:
    """The rows of most parts, and the sums of the online loss where runs have them."""
    rows = usual(results)
    for round_ in LOSS_ROUNDS:
        figure, metric = partial(_online_loss, round_=round_), loss_until(round_)
        for variant, runs in results.pairs():
            if ONLINE_LOSS not in variant.spec.probes:
                continue  # FC in every round is FC in half of them, and is compared with nothing here
            values = [value for one in runs.values() if (value := figure(one)) is not None]
            rows += results.row(variant, metric, values)
        for row in results.versus(figure) if round_ == LOSS_ROUNDS[-1] else ():
            rows.append(replace(row, metric=f"{metric}: {row.metric.removesuffix(', points')}"))
    return rows


RATES: Final = Part(
    name="rates",
    place=20,
    title="a modality is missing while training, each method at its best learning rate",
    variants=tuple(
        _at_best(method, words, flow)
        for words, flow in ((HALF, v.HALF), (EVERY, v.EVERY))
        for method in _METHODS
    )
    + tuple(map(_faster, _METHODS)),
    versus=_against(v.PNR, _METHODS),
    rows=online_rows,
    by_default=False,
)
