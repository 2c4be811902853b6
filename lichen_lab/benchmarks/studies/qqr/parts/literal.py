"""The paper's literal rule, with standardised inputs and a learning rate of its own."""

from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts.quantity import flow_of, under
from lichen_lab.benchmarks.studies.qqr.settings import STANDARDISED
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, line
from lichen_lab.benchmarks.study.part import grid_rows

METHODS: Final = (v.FC, v.PNR, v.ZP_INPUT, v.IS)
"""The paper's own."""
GRID: Final = (0.08, 0.16, 0.32, 0.64)
_UNDER: Final = under(v.LITERAL)


def _variant(method: str, lr: float, words: str, *, tuning: bool = False) -> Line:
    config = v.quantity(method, v.LITERAL, lr=lr)
    return line(method, words, flow_of(method), config, fleet=STANDARDISED.name, tuning=tuning)


PART: Final = Part(
    name="literal",
    place=22,
    title="the paper's literal rule on standardised inputs, at the paper's rate and at one of its own",
    variants=tuple(
        _variant(method, lr, words)
        for lr, words in (
            (v.LITERAL_RATE, f"{_UNDER}, at its best learning rate"),
            (v.ALL_METHODS["lr"], _UNDER),
        )
        for method in METHODS
    ),
    versus=tuple((v.PNR, method) for method in METHODS if method != v.PNR),
    by_default=False,
)
TUNE: Final = Part(
    name="literal_tune",
    place=23,
    title="learning rates of the literal rule, on seeds and people of their own",
    variants=tuple(
        _variant(method, lr, f"{_UNDER}, held-out people, lr {lr:g}", tuning=True)
        for method in (v.PNR, v.ZP_INPUT)
        for lr in GRID
    ),
    rows=partial(
        grid_rows,
        under=f"{_UNDER}, held-out people",
        rate=lambda one: float(one.spec.setting.config["lr"]),
        chosen=lambda _: v.LITERAL_RATE,
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
