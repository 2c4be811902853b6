"""A part of the study: :mod:`lichen_lab.benchmarks.study.part` on the runs of this one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from lichen_lab.benchmarks.result import Row
from lichen_lab.benchmarks.studies.tactfl.run_spec import One
from lichen_lab.benchmarks.studies.tactfl.settings import HERE, TRAINED, Outcome
from lichen_lab.benchmarks.study import part as base
from lichen_lab.benchmarks.study.part import above, in_errors, paired

F1: Final = "F1, mean over classes, %"
ACCURACY: Final = "accuracy, %"
_QUICK_ROUNDS: Final = 2
_QUICK_TUNE: Final = 2
_QUICK_HEAD: Final = 2
_QUICK_WIDTH: Final = 8
Part = base.Part[One, Outcome]
Results = base.Results[One, Outcome]
Figure = Callable[[Outcome], float]


@dataclass(frozen=True)
class Variant(base.Variant[One]):
    """One line of a table.

    Attributes:
        end: which end of the run it shows: several lines may show one run.
        test: which test set.
    """

    end: str = TRAINED
    test: str = HERE

    @property
    def dataset(self) -> str:
        """The fleet."""
        return self.one.fleet

    @property
    def place(self) -> tuple[str, str, str]:
        """Variants are compared where this is the same."""
        return self.dataset, self.under, self.test

    def small(self) -> Self:
        """Two short rounds of a small fleet."""
        setting = self.one.setting
        few = replace(
            setting,
            rounds=_QUICK_ROUNDS,
            width=_QUICK_WIDTH,
            tune_epochs=min(_QUICK_TUNE, setting.tune_epochs),
            options={**setting.options, "head_epochs": _QUICK_HEAD},
        )
        return replace(self, one=replace(self.one, setting=few, small=True))

    def f1(self, outcome: Outcome) -> float:
        """Mean F1 over the classes, in %."""
        return outcome.scores[self.end][self.test]["f1"]

    def accuracy(self, outcome: Outcome) -> float:
        """In %."""
        return outcome.scores[self.end][self.test]["accuracy"]


def shown(variant: base.Variant[One]) -> Variant:
    """A variant as this study's; all of its parts have such alone."""
    if not isinstance(variant, Variant):
        raise TypeError(f"{variant.method}: a variant of another study")
    return variant


def scores(results: Results) -> list[Row]:
    """F1 and accuracy of every variant."""
    rows = []
    for plain, runs in results.pairs():
        variant = shown(plain)
        seconds = sum(one.seconds for one in runs.values())
        rows += results.row(variant, F1, [variant.f1(one) for one in runs.values()], seconds=seconds)
        rows += results.row(variant, ACCURACY, [variant.accuracy(one) for one in runs.values()])
    return rows


def margins(results: Results) -> list[Row]:
    """F1 of ``ours`` less that of ``theirs``, by seed and on the worst one, for :attr:`Part.versus`."""
    lines = [(shown(plain), runs) for plain, runs in results.pairs()]
    rows = []
    for ours, theirs in results.part.versus:
        for variant, runs in lines:
            alike = [
                (other, others)
                for other, others in lines
                if (variant.method, other.method) == (ours, theirs) and other.place == variant.place
            ]
            for other, others in alike:
                seeds = sorted(runs.keys() & others.keys())
                ahead = [variant.f1(runs[seed]) - other.f1(others[seed]) for seed in seeds]
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
    "ACCURACY",
    "F1",
    "Figure",
    "Part",
    "Results",
    "Variant",
    "above",
    "in_errors",
    "least",
    "margins",
    "paired",
    "scores",
    "shown",
    "usual",
]
