"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from lichen_lab.benchmarks.result import Row
from lichen_lab.benchmarks.studies.qqr.settings import Outcome, Setting
from lichen_lab.benchmarks.study import part as base
from lichen_lab.benchmarks.study.part import above, paired, standard_error
from lichen_lab.simulation.data.dataset_tasks import study

ACCURACY: Final = "accuracy, %"
Part = base.Part[Setting, Outcome]
Results = base.Results[Setting, Outcome]


@dataclass(frozen=True)
class Variant(base.Variant[Setting]):
    """One line of a table."""

    @property
    def dataset(self) -> str:
        """The study's title."""
        return study(self.one.dataset).title

    def small(self) -> Self:
        """Two rounds of two devices."""
        flow = self.one.flow
        tiny = replace(flow, devices=min(2, flow.devices), pool=200, size=64, step=16, test=128)
        return replace(self, one=replace(self.one, flow=tiny, rounds=2))


def accuracy(outcome: Outcome) -> float:
    """A run's usual figure."""
    return outcome.accuracy


def margins(results: Results, figure: Callable[[Outcome], float] = accuracy) -> list[Row]:
    """Paired differences, as :attr:`lichen_lab.benchmarks.study.part.Part.versus` names them."""
    return [row for ours, theirs in results.part.versus for row in results.margins(ours, (theirs,), figure)]


def accuracies(results: Results) -> list[Row]:
    """Accuracy of every variant, and the paired differences: what most parts show."""
    return [*results.figures(ACCURACY, accuracy), *margins(results)]


__all__ = [
    "ACCURACY",
    "Part",
    "Results",
    "Variant",
    "above",
    "accuracies",
    "accuracy",
    "margins",
    "paired",
    "standard_error",
]
