"""A class without training devices, which two devices without torch add by prototypes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, StreamConditions
from lichen_lab.benchmarks.studies.qqr.variants import Line, Part, Results, line
from lichen_lab.benchmarks.study.part import above
from lichen_lab.simulation.data.sets import uci_har

CLASSES: Final = ("walking upstairs", "laying")
BEFORE: Final = "4 training devices"
AFTER: Final = "4 training, 2 prototype devices"
_RECALL: Final = "recall of the class, %"
_OTHERS: Final = "accuracy on the other classes, %"
_FLOW: Final = StreamConditions(devices=4)
_ROUNDS: Final = 20
"""Enough rounds for the effect, in half of the time."""


def under(label: str) -> str:
    """The conditions as text."""
    return f"no training device holds {label!r}"


def _variants(label: str) -> list[Line]:
    before = replace(_FLOW, unseen_class=uci_har.LABELS.index(label))
    flows = {BEFORE: before, AFTER: replace(before, prototype_devices=2)}
    return [
        line(name, under(label), flow, v.quantity(v.PNR), "unseen_class", rounds=_ROUNDS)
        for name, flow in flows.items()
    ]


def _probed(name: str) -> Callable[[QqrOutcome], float]:
    return lambda outcome: outcome.probes["unseen_class"][name]


_FIGURES: Final = {_RECALL: _probed("recall, with"), _OTHERS: _probed("others, with")}


def _rows(results: Results) -> list[ResultRow]:
    rows = []
    for metric, figure in _FIGURES.items():
        for variant in results.part.variants:
            runs = results.of(variant.method, variant.under)
            rows += results.row(variant, metric, [figure(one) for one in runs.values()])
        for row in results.versus(figure):
            rows.append(replace(row, metric=f"{metric}: {row.metric}"))
    return rows


PART: Final = Part(
    name="new_class",
    place=7,
    title="a class known to prototype devices alone",
    variants=tuple(variant for label in CLASSES for variant in _variants(label)),
    versus=((AFTER, BEFORE),),
    rows=_rows,
    goals=tuple(
        Goal(f"{_RECALL}: {above(BEFORE)}", 0.0, above=True, setting=under(label), method=AFTER)
        for label in CLASSES
    ),
)
