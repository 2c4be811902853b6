"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from dataclasses import dataclass
from functools import partial
from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide.settings import One, Outcome
from lichen_lab.benchmarks.study import part as base

MRR: Final = "MRR, %"
METRICS: Final = {MRR: "mrr", "Hits@1, %": "hits1", "Hits@3, %": "hits3", "Hits@10, %": "hits10"}
Results = base.PartResults[One, Outcome]
Variant = base.Variant[One, Outcome]


def best(name: str, outcome: Outcome) -> float:
    """A figure on test facts at the round that answers validation facts best, in %."""
    return 100 * outcome.best.test[name]


@dataclass(frozen=True, kw_only=True)
class Part(base.Part[One, Outcome]):
    """One part of the study."""

    figures: tuple[base.Figure[Outcome], ...] = tuple(
        base.Figure(metric, partial(best, name)) for metric, name in METRICS.items()
    )
    worst: bool = True
