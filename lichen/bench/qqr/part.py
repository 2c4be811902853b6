"""A part of the study: variants as data, and the rows made of their runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import stdev
from typing import Final

from lichen.bench.qqr.setting import Flow, Outcome, Setting
from lichen.bench.result import Goal, Row, row
from lichen.studies import study

ACCURACY: Final = "accuracy, %"
QUICK: Final = ", quick"
"""Ends a row's setting in a quick run, so that no goal speaks about it."""


@dataclass(frozen=True)
class Variant:
    """One line of a table.

    Attributes:
        method: as rows name it.
        under: the conditions, in words; variants are compared under the same ones.
        setting: the run, its seed aside.
    """

    method: str
    under: str
    setting: Setting


@dataclass(frozen=True)
class Results:
    """The finished runs of a part: variant's method and conditions -> seed -> outcome."""

    part: "Part"
    runs: Mapping[tuple[str, str], Mapping[int, Outcome]]
    quick: bool = False

    def of(self, method: str, under: str) -> Mapping[int, Outcome]:
        """By seed; empty where there is no such variant."""
        return self.runs.get((method, under), {})

    def words(self, under: str) -> str:
        """A row's setting."""
        return under + (QUICK if self.quick else "")

    def row(
        self, variant: Variant, metric: str, values: Sequence[float], *, seconds: float = 0.0
    ) -> list[Row]:
        """A row, or none without values."""
        title = study(variant.setting.dataset).title
        if not values:
            return []
        return [row(title, variant.method, self.words(variant.under), metric, values, seconds=seconds)]

    def accuracies(self) -> list[Row]:
        """Accuracy of every variant."""
        rows = []
        for variant in self.part.variants:
            runs = self.of(variant.method, variant.under)
            seconds = sum(one.seconds for one in runs.values())
            rows += self.row(variant, ACCURACY, [one.accuracy for one in runs.values()], seconds=seconds)
        return rows

    def margins(self, figure: Callable[[Outcome], float] = lambda one: one.accuracy) -> list[Row]:
        """Paired differences, as :attr:`Part.versus` names them."""
        rows = []
        for ours, theirs in self.part.versus:
            for variant in self.part.variants:
                if variant.method == ours:
                    pairs = paired(self.of(ours, variant.under), self.of(theirs, variant.under), figure)
                    rows += self.row(variant, above(theirs), pairs)
        return rows


def above(method: str) -> str:
    """The metric of a paired difference."""
    return f"above {method}, points"


def paired(
    ours: Mapping[int, Outcome], theirs: Mapping[int, Outcome], figure: Callable[[Outcome], float]
) -> list[float]:
    """Differences seed by seed, over the seeds that both have."""
    return [figure(ours[seed]) - figure(theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; 0 of a single one."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _usual(results: Results) -> list[Row]:
    return [*results.accuracies(), *results.margins()]


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        name: the word after ``--part``.
        title: in one line.
        variants: what is run.
        versus: pairs (ours, theirs) of methods whose difference is shown under every condition.
        rows: makes the rows.
        goals: what the figures should be.
        place: smaller ones are shown first.
        by_default: whether ``lichen bench qqr`` runs it without being asked.
        seeds: instead of those that the command names.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    versus: tuple[tuple[str, str], ...] = ()
    rows: Callable[[Results], list[Row]] = _usual
    goals: tuple[Goal, ...] = ()
    place: int = 100
    by_default: bool = True
    seeds: tuple[int, ...] = field(default=())

    def settings(self, seeds: Iterable[int]) -> list[Setting]:
        """Every run, seed by seed."""
        return [variant.setting.at(seed) for seed in self.seeds or seeds for variant in self.variants]

    def results(self, done: Mapping[str, Outcome], seeds: Iterable[int], *, quick: bool = False) -> Results:
        """Pick this part's runs out of all."""
        seeds = tuple(self.seeds or seeds)
        runs = {
            (v.method, v.under): {
                seed: done[key] for seed in seeds if (key := v.setting.at(seed).key()) in done
            }
            for v in self.variants
        }
        return Results(self, runs, quick)

    def small(self) -> "Part":
        """The same with a few short rounds on little data: shows that it runs, not what it is worth."""
        return replace(self, variants=tuple(_small(variant) for variant in self.variants))


def _small(variant: Variant) -> Variant:
    flow = variant.setting.flow
    tiny = replace(flow, devices=min(2, flow.devices), pool=200, size=64, step=16, test=128)
    return replace(variant, setting=replace(variant.setting, flow=tiny, rounds=2))


__all__ = ["ACCURACY", "Flow", "Part", "Results", "Variant", "above", "paired", "standard_error"]
