"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from lichen_lab.benchmarks.result import Row
from lichen_lab.benchmarks.studies.disentafl.run_spec import One
from lichen_lab.benchmarks.studies.disentafl.settings import Outcome, fleet_mean
from lichen_lab.benchmarks.study import part as base
from lichen_lab.benchmarks.study.part import above, in_errors, paired

PERSONAL: Final = "own models, mean over devices, %"
AGGREGATE: Final = "what the fleet gives, mean over devices, %"
EVERYBODY: Final = "all devices in every round"
QUICK_ROUNDS: Final = 2
Figure = Callable[[Outcome], float]
Part = base.Part[One, Outcome]
Results = base.Results[One, Outcome]


@dataclass(frozen=True)
class Variant(base.Variant[One]):
    """One line of a table."""

    under: str = EVERYBODY

    @property
    def dataset(self) -> str:
        """The fleet."""
        return self.one.fleet

    def small(self) -> Self:
        """Two rounds of a small fleet."""
        setting = replace(self.one.setting, rounds=QUICK_ROUNDS)
        return replace(self, one=replace(self.one, setting=setting, small=True))


def own(outcome: Outcome) -> float:
    """A run's usual figure: own models."""
    return outcome.mean


def scores(results: Results) -> list[Row]:
    """Personal and aggregate figures of every variant."""
    rows = []
    for variant, runs in results.pairs():
        seconds = sum(one.seconds for one in runs.values())
        rows += results.row(variant, PERSONAL, [own(one) for one in runs.values()], seconds=seconds)
        given = [fleet_mean(one.aggregate) for one in runs.values() if one.aggregate is not None]
        rows += results.row(variant, AGGREGATE, given)
    return rows


def of_kind(kind: str) -> Figure:
    """The mean of the personal models over the devices of a kind."""

    def figure(outcome: Outcome) -> float:
        return fleet_mean({name: s for name, s in outcome.personal.items() if outcome.kinds[name] == kind})

    return figure


__all__ = [
    "AGGREGATE",
    "EVERYBODY",
    "PERSONAL",
    "Figure",
    "Part",
    "Results",
    "Variant",
    "above",
    "in_errors",
    "of_kind",
    "own",
    "paired",
    "scores",
]
