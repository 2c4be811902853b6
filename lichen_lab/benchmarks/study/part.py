"""A part of a study: variants as data, and the rows made of their runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Final, Generic, Protocol, Self, TypeVar

from lichen_lab.benchmarks.result import Goal, Row, Say, row

QUICK: Final = ", quick"
"""Ends a row's setting in a quick run, so that no goal speaks about it."""


class Setting(Protocol):
    """What one run depends on: a frozen dataclass that survives JSON and a process boundary."""

    @property
    def seed(self) -> int:
        """Of everything that is drawn."""
        ...

    def at(self, seed: int) -> Self:
        """The same with another seed."""
        ...

    def key(self) -> str:
        """The same for settings that run the same."""
        ...


class Timed(Protocol):
    """What one run leaves: a dataclass that survives JSON."""

    @property
    def seconds(self) -> float:
        """That it took."""
        ...


S = TypeVar("S", bound=Setting)
O = TypeVar("O", bound=Timed)  # noqa: E741 - an outcome, beside a setting


@dataclass(frozen=True)
class Variant(ABC, Generic[S]):
    """One line of a table. A study says what its data set is called, and what a small run of it is.

    Attributes:
        method: as rows name it.
        one: the run, its seed aside.
        under: the conditions, in words; variants are compared on the same data set under the same ones.
    """

    method: str
    one: S
    under: str

    @property
    @abstractmethod
    def dataset(self) -> str:
        """As rows name it."""

    @abstractmethod
    def small(self) -> Self:
        """The same with a few short rounds on little data: shows that it runs, not what it is worth."""


@dataclass(frozen=True)
class Results(Generic[S, O]):
    """The finished runs of a part.

    Attributes:
        part: whose they are.
        runs: of each variant, in their order: seed -> outcome.
        quick: whether they were small.
        computed: the part's rows that needed no run.
    """

    part: "Part[S, O]"
    runs: Sequence[Mapping[int, O]]
    quick: bool = False
    computed: Sequence[Row] = ()

    def rows(self) -> list[Row]:
        """All that the part shows."""
        return [*self.part.rows(self), *self.computed]

    def pairs(self) -> Iterable[tuple[Variant[S], Mapping[int, O]]]:
        """Variants with their runs, those without any left out."""
        return ((v, runs) for v, runs in zip(self.part.variants, self.runs, strict=True) if runs)

    def of(self, method: str, under: str | None = None, dataset: str | None = None) -> Mapping[int, O]:
        """By seed, of the first such variant; empty where there is none. None: whatever it is."""
        for variant, runs in self.pairs():
            named = ((under, variant.under), (dataset, variant.dataset))
            if variant.method == method and all(wanted in {None, given} for wanted, given in named):
                return runs
        return {}

    def keys(self) -> set[str]:
        """The runs themselves: several tables may show one."""
        return {variant.one.at(seed).key() for variant, runs in self.pairs() for seed in runs}

    def row(
        self, variant: Variant[S], metric: str, values: Sequence[float], *, seconds: float = 0.0
    ) -> list[Row]:
        """A row, or none without values."""
        if not values:
            return []
        under = variant.under + (QUICK if self.quick else "")
        return [row(variant.dataset, variant.method, under, metric, values, seconds=seconds)]

    def figures(self, metric: str, figure: Callable[[O], float]) -> list[Row]:
        """A row of each variant that has runs, with the seconds that they took."""
        rows = []
        for variant, runs in self.pairs():
            seconds = sum(one.seconds for one in runs.values())
            rows += self.row(variant, metric, [figure(one) for one in runs.values()], seconds=seconds)
        return rows

    def margins(
        self, ours: str, theirs: Iterable[str], figure: Callable[[O], float], what: str = ""
    ) -> list[Row]:
        """Differences seed by seed of one method from others, on the same data under the same conditions.

        ``what`` names the figure, where it is not the study's usual one.
        """
        others, rows = tuple(theirs), []
        for variant, runs in self.pairs():
            for other in others if variant.method == ours else ():
                values = paired(runs, self.of(other, variant.under, variant.dataset), figure)
                rows += self.row(variant, f"{what}{above(other)}", values)
        return rows


def above(method: str) -> str:
    """The metric of a paired difference."""
    return f"above {method}, points"


def paired(ours: Mapping[int, O], theirs: Mapping[int, O], figure: Callable[[O], float]) -> list[float]:
    """Differences seed by seed, over the seeds that both have."""
    return [figure(ours[seed]) - figure(theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; 0 of a single one."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def in_errors(values: Sequence[float]) -> list[float]:
    """Their mean in its standard errors, or nothing where there is no telling its error."""
    error = standard_error(values)
    return [fmean(values) / error] if error else []


def _nothing(quick: bool, say: Say) -> list[Row]:  # noqa: FBT001 - every benchmark's signature
    del quick, say
    return []


@dataclass(frozen=True, kw_only=True)
class Part(Generic[S, O]):
    """One part.

    Attributes:
        name: the word after ``--part``.
        title: in one line.
        variants: what is run; each has a line of its own: data set, method, conditions.
        rows: makes the rows of the runs.
        versus: pairs (ours, theirs) of methods whose difference ``rows`` may show, under every condition.
        computed: makes rows that need no run.
        goals: what the figures should be.
        place: smaller ones are shown first.
        by_default: whether the study runs it without being asked.
        seeds: instead of those that the command names.
    """

    name: str
    title: str
    rows: Callable[[Results[S, O]], list[Row]]
    variants: tuple[Variant[S], ...] = ()
    versus: tuple[tuple[str, str], ...] = ()
    computed: Callable[[bool, Say], list[Row]] = _nothing
    goals: tuple[Goal, ...] = ()
    place: int = 100
    by_default: bool = True
    seeds: tuple[int, ...] = ()

    def ones(self, seeds: Iterable[int]) -> list[S]:
        """Every run, seed by seed."""
        return [variant.one.at(seed) for seed in self.seeds or seeds for variant in self.variants]

    def results(self, done: Mapping[str, O], seeds: Iterable[int], *, quick: bool = False) -> Results[S, O]:
        """Pick this part's runs out of all."""
        seeds = tuple(self.seeds or seeds)
        runs = [
            {seed: done[key] for seed in seeds if (key := v.one.at(seed).key()) in done}
            for v in self.variants
        ]
        return Results(self, runs, quick)

    def small(self) -> Self:
        """The same with small runs, on the seeds that the command names."""
        return replace(self, variants=tuple(variant.small() for variant in self.variants), seeds=())
