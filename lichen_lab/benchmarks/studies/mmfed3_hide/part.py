"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from lichen_lab.benchmarks.result import Row
from lichen_lab.benchmarks.studies.mmfed3_hide.run_spec import One
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import Outcome
from lichen_lab.benchmarks.study import part as base
from lichen_lab.benchmarks.study.part import above, paired

MRR: Final = "MRR, %"
METRICS: Final = {MRR: "mrr", "Hits@1, %": "hits1", "Hits@3, %": "hits3", "Hits@10, %": "hits10"}
_PERCENT: Final = 100.0
_QUICK_ROUNDS: Final = 2
_QUICK_DIM: Final = 16
Part = base.Part[One, Outcome]
Results = base.Results[One, Outcome]
Figure = Callable[[Outcome], float]


@dataclass(frozen=True)
class Variant(base.Variant[One]):
    """One line of a table."""

    @property
    def dataset(self) -> str:
        """The graph."""
        return self.one.graph

    def small(self) -> Self:
        """A short round or two of few entities."""
        setting = self.one.setting
        few = replace(
            setting, rounds=_QUICK_ROUNDS, warmup=min(1, setting.warmup), epochs=1, dim=_QUICK_DIM, cpu_s=None
        )
        return replace(self, one=replace(self.one, setting=few, small=True))


def mrr(outcome: Outcome) -> float:
    """A run's usual figure, in %."""
    return _PERCENT * outcome.best.test["mrr"]


def scores(results: Results) -> list[Row]:
    """MRR and hits of every variant, on test facts, at the round that answers validation facts best."""
    rows = []
    for variant, runs in results.pairs():
        seconds = sum(one.seconds for one in runs.values())
        for metric, name in METRICS.items():
            values = [_PERCENT * one.best.test[name] for one in runs.values()]
            rows += results.row(variant, metric, values, seconds=seconds if name == "mrr" else 0.0)
    return rows


def margins(results: Results) -> list[Row]:
    """MRR of ``ours`` less that of ``theirs``, by seed and on the worst one, for :attr:`Part.versus`."""
    rows = []
    for ours, theirs in results.part.versus:
        for variant, runs in results.pairs():
            if variant.method != ours:
                continue
            ahead = paired(runs, results.of(theirs, variant.under, variant.dataset), mrr)
            rows += results.row(variant, above(theirs), ahead)
            rows += results.row(variant, least(theirs), [min(ahead)] if ahead else [])
    return rows


def least(method: str) -> str:
    """The metric of a paired difference on the seed where it is smallest."""
    return f"worst seed above {method}, points"


def usual(results: Results) -> list[Row]:
    """Scores, and the differences that the part names."""
    return [*scores(results), *margins(results)]


__all__ = [
    "METRICS",
    "MRR",
    "Figure",
    "Part",
    "Results",
    "Variant",
    "above",
    "least",
    "margins",
    "mrr",
    "paired",
    "scores",
    "usual",
]
