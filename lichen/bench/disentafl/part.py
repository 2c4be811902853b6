"""A part of the study: variants as data, and the rows made of their runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Final

from lichen.bench.disentafl.one import One
from lichen.bench.disentafl.setting import Outcome, fleet_mean
from lichen.bench.result import Goal, Row, Say, row

PERSONAL: Final = "own models, mean over devices, %"
AGGREGATE: Final = "what the fleet gives, mean over devices, %"
EVERYBODY: Final = "all devices in every round"
QUICK: Final = ", quick"
"""Ends a row's setting in a quick run, so that no goal speaks about it."""
QUICK_ROUNDS: Final = 2
Figure = Callable[[Outcome], float]


@dataclass(frozen=True)
class Variant:
    """One line of a table.

    Attributes:
        method: as rows name it.
        one: the run, its seed aside; its fleet is the row's data set.
        under: the conditions, in words.
    """

    method: str
    one: One
    under: str = EVERYBODY


@dataclass(frozen=True)
class Results:
    """The finished runs of a part.

    Attributes:
        part: whose they are.
        runs: of each variant, in their order: seed -> outcome.
        quick: whether they were small.
    """

    part: "Part"
    runs: Sequence[Mapping[int, Outcome]]
    quick: bool = False

    def pairs(self) -> Iterable[tuple[Variant, Mapping[int, Outcome]]]:
        """Variants with their runs, those without any left out."""
        return ((v, runs) for v, runs in zip(self.part.variants, self.runs, strict=True) if runs)

    def of(self, fleet: str, method: str, under: str | None = None) -> Mapping[int, Outcome]:
        """By seed; empty where there is no such variant."""
        for variant, runs in self.pairs():
            if (variant.one.fleet, variant.method) == (fleet, method) and under in {None, variant.under}:
                return runs
        return {}

    def row(
        self, variant: Variant, metric: str, values: Sequence[float], *, seconds: float = 0.0
    ) -> list[Row]:
        """A row, or none without values."""
        under = variant.under + (QUICK if self.quick else "")
        if not values:
            return []
        return [row(variant.one.fleet, variant.method, under, metric, values, seconds=seconds)]

    def scores(self) -> list[Row]:
        """Personal and aggregate figures of every variant."""
        rows = []
        for variant, runs in self.pairs():
            seconds = sum(one.seconds for one in runs.values())
            rows += self.row(variant, PERSONAL, [one.mean for one in runs.values()], seconds=seconds)
            given = [fleet_mean(one.aggregate) for one in runs.values() if one.aggregate is not None]
            rows += self.row(variant, AGGREGATE, given)
        return rows

    def margins(
        self, ours: str, theirs: Iterable[str], figure: Figure = lambda one: one.mean, what: str = ""
    ) -> list[Row]:
        """Differences seed by seed of one method from others, on the same fleet under the same conditions.

        ``what`` names the figure, where it is not that of own models.
        """
        rows = []
        for variant, runs in self.pairs():
            for other in theirs if variant.method == ours else ():
                values = paired(runs, self.of(variant.one.fleet, other, variant.under), figure)
                rows += self.row(variant, f"{what}{above(other)}", values)
        return rows


def above(method: str) -> str:
    """The metric of a paired difference."""
    return f"above {method}, points"


def paired(ours: Mapping[int, Outcome], theirs: Mapping[int, Outcome], figure: Figure) -> list[float]:
    """Differences seed by seed, over the seeds that both have."""
    return [figure(ours[seed]) - figure(theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def in_errors(values: Sequence[float]) -> list[float]:
    """Their mean in its standard errors, or nothing where there is no telling its error."""
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return [fmean(values) / error] if error else []


def of_kind(kind: str) -> Figure:
    """The mean of the personal models over the devices of a kind."""

    def figure(outcome: Outcome) -> float:
        return fleet_mean({name: s for name, s in outcome.personal.items() if outcome.kinds[name] == kind})

    return figure


def _usual(results: Results) -> list[Row]:
    return results.scores()


def _nothing(quick: bool, say: Say) -> list[Row]:  # noqa: FBT001 - every benchmark's signature
    del quick, say
    return []


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        name: the word after ``--part``.
        title: in one line.
        variants: what is run.
        rows: makes the rows of the runs.
        computed: makes rows that need no run.
        goals: what the figures should be.
        place: smaller ones are shown first.
        by_default: whether ``lichen bench disentafl`` runs it without being asked.
        seeds: instead of those that the command names.
    """

    name: str
    title: str
    variants: tuple[Variant, ...] = ()
    rows: Callable[[Results], list[Row]] = _usual
    computed: Callable[[bool, Say], list[Row]] = _nothing
    goals: tuple[Goal, ...] = ()
    place: int = 100
    by_default: bool = True
    seeds: tuple[int, ...] = ()

    def ones(self, seeds: Iterable[int]) -> list[One]:
        """Every run, seed by seed."""
        return [variant.one.at(seed) for seed in self.seeds or seeds for variant in self.variants]

    def results(self, done: Mapping[str, Outcome], seeds: Iterable[int], *, quick: bool = False) -> Results:
        """Pick this part's runs out of all."""
        seeds = tuple(self.seeds or seeds)
        runs = [
            {seed: done[key] for seed in seeds if (key := v.one.at(seed).key()) in done}
            for v in self.variants
        ]
        return Results(self, runs, quick)

    def small(self) -> "Part":
        """The same with two rounds of small fleets, and one seed: shows that it runs."""
        return replace(self, variants=tuple(map(_small, self.variants)), seeds=())


def _small(variant: Variant) -> Variant:
    setting = replace(variant.one.setting, rounds=QUICK_ROUNDS)
    return replace(variant, one=replace(variant.one, setting=setting, small=True))
