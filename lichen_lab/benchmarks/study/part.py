"""A part of a study: variants as data, and the rows made of their runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final, Generic, Self

from lichen_lab.benchmarks.result import Goal, ResultRow, Say, row
from lichen_lab.benchmarks.study.run_spec import O, S

QUICK: Final = ", quick"
"""Suffix of a row's setting in a quick run, so that no goal applies to it."""


@dataclass(frozen=True)
class Figure(Generic[O]):
    """A figure of a run, from which rows, paired differences and worst seeds are made.

    Attributes:
        metric: its name in rows, with the unit.
        of: its value for a run's outcome, or None.
    """

    metric: str
    of: Callable[[O], float | None]


@dataclass(frozen=True)
class StudyLine(Generic[S, O]):
    """One line of a table.

    Attributes:
        method: its name in rows.
        spec: the run; its seed is replaced.
        under: the conditions in words; lines are compared on the same data set under the same conditions.
        view: the part of a run's outcome that the line shows, where several lines show one run.
    """

    method: str
    spec: S
    under: str
    view: Callable[[O], O] = lambda outcome: outcome

    @property
    def dataset(self) -> str:
        """Its name in rows."""
        return self.spec.dataset

    def small(self) -> Self:
        """The line with a small run."""
        return replace(self, spec=self.spec.tiny())


def lines(
    make: Callable[..., StudyLine[S, O]], methods: Iterable[str], unders: Mapping[str, Mapping[str, Any]]
) -> tuple[StudyLine[S, O], ...]:
    """A line for every method under every condition: ``make(method, words, **changes)``.

    Args:
        make: a study's ``line``.
        methods: their titles.
        unders: conditions in words -> changes of a run.
    """
    titles = tuple(methods)
    return tuple(make(title, words, **changes) for words, changes in unders.items() for title in titles)


@dataclass(frozen=True)
class PartResults(Generic[S, O]):
    """The finished runs of a part.

    Attributes:
        part: the part.
        runs: for each of its variants: seed -> outcome.
        quick: whether the runs were small.
        computed: the part's rows that need no run.
    """

    part: "Part[S, O]"
    runs: Sequence[Mapping[int, O]]
    quick: bool = False
    computed: Sequence[ResultRow] = ()

    def rows(self) -> list[ResultRow]:
        """All rows of the part."""
        return [*self.part.rows(self), *self.computed]

    def pairs(self) -> Iterable[tuple[StudyLine[S, O], Mapping[int, O]]]:
        """Variants that have runs, with their runs."""
        return ((v, runs) for v, runs in zip(self.part.variants, self.runs, strict=True) if runs)

    def of(self, method: str, under: str | None = None, dataset: str | None = None) -> Mapping[int, O]:
        """Runs by seed of the first matching variant, or nothing; None matches any value."""
        for variant, runs in self.pairs():
            named = ((under, variant.under), (dataset, variant.dataset))
            if variant.method == method and all(wanted in {None, given} for wanted, given in named):
                return runs
        return {}

    def keys(self) -> set[str]:
        """Keys of the runs; several tables may show one run."""
        return {variant.spec.at(seed).key() for variant, runs in self.pairs() for seed in runs}

    def row(
        self, variant: StudyLine[S, O], metric: str, values: Sequence[float], *, seconds: float = 0.0
    ) -> list[ResultRow]:
        """One row, or none if there are no values."""
        if not values:
            return []
        under = variant.under + (QUICK if self.quick else "")
        return [row(variant.dataset, variant.method, under, metric, values, seconds=seconds)]

    def scores(self) -> list[ResultRow]:
        """The part's figures of every variant; the first figure's row carries the runs' seconds."""
        rows = []
        for variant, runs in self.pairs():
            seconds = sum(one.seconds for one in runs.values())
            for figure in self.part.figures:
                values = [value for one in runs.values() if (value := figure.of(one)) is not None]
                rows += self.row(variant, figure.metric, values, seconds=seconds)
                seconds = 0.0
        return rows

    def margins(
        self,
        ours: str,
        theirs: Iterable[str],
        figure: Callable[[O], float | None] | None = None,
        what: str = "",
    ) -> list[ResultRow]:
        """Differences, seed by seed, between a method and others on the same data and conditions.

        Args:
            ours: the method.
            theirs: the other methods.
            figure: the figure to compare; None: the part's first one.
            what: prefix of the metric for another figure.
        """
        others, rows = tuple(theirs), []
        for variant, runs in self.pairs():
            for other in others if variant.method == ours else ():
                same = self.of(other, variant.under, variant.dataset)
                ahead = paired(runs, same, figure or self.part.figures[0].of)
                rows += self.row(variant, f"{what}{above(other)}", ahead)
                if self.part.worst and ahead:
                    rows += self.row(variant, least(other), [min(ahead)])
        return rows

    def versus(self, figure: Callable[[O], float | None] | None = None) -> list[ResultRow]:
        """The differences listed in :attr:`Part.versus`."""
        return [row for ours, theirs in self.part.versus for row in self.margins(ours, (theirs,), figure)]


def usual(results: PartResults[S, O]) -> list[ResultRow]:
    """Figures of every variant and the part's differences: the rows of most parts."""
    return [*results.scores(), *results.versus()]


def grid_rows(
    results: PartResults[S, O],
    under: str,
    rate: Callable[[StudyLine[S, O]], float],
    chosen: Callable[[StudyLine[S, O]], float],
) -> list[ResultRow]:
    """Scores, and for each method its best learning rate of a grid beside its rate in the tables.

    A method with a single rate is no grid: it has scores alone.

    Args:
        results: runs of lines that differ in their learning rate; compared by the first figure.
        under: name of the grid in rows.
        rate: learning rate of a line.
        chosen: learning rate of the line's method in the tables.
    """
    rows, best = usual(results), results.part.figures[0].of
    tried: dict[tuple[str, str], list[tuple[float, StudyLine[S, O]]]] = {}
    for line, runs in results.pairs():
        mean = fmean(value for outcome in runs.values() if (value := best(outcome)) is not None)
        tried.setdefault((line.dataset, line.method), []).append((mean, line))
    for pairs in tried.values():
        if len({rate(line) for _, line in pairs}) == 1:
            continue
        line = max(pairs, key=lambda pair: pair[0])[1]
        shown = replace(line, under=under)
        rows += results.row(shown, "best learning rate of the grid", [rate(line)])
        rows += results.row(shown, "learning rate in the tables", [chosen(line)])
    return rows


def above(method: str) -> str:
    """The metric of a paired difference."""
    return f"above {method}, points"


def least(method: str) -> str:
    """The metric of a paired difference on the seed where it is smallest."""
    return f"worst seed above {method}, points"


def paired(
    ours: Mapping[int, O], theirs: Mapping[int, O], figure: Callable[[O], float | None]
) -> list[float]:
    """Differences, seed by seed, over the seeds where both have the figure."""
    both = ((figure(ours[seed]), figure(theirs[seed])) for seed in sorted(ours.keys() & theirs.keys()))
    return [mine - other for mine, other in both if mine is not None and other is not None]


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 for a single value."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def in_errors(values: Sequence[float]) -> list[float]:
    """The mean in units of its standard error, or nothing if the error is unknown."""
    error = standard_error(values)
    return [fmean(values) / error] if error else []


def condition_text(options: Mapping[str, Any]) -> str:
    """Options that differ from the tables' options, as a condition in words."""
    return ", ".join(f"{name} {value}" for name, value in options.items()) or "as in the tables"


def in_words(changes: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Changes of a run, keyed by their words, for :func:`lines`; fields of ``setting`` read like options."""
    return {condition_text({**change.get("setting", {}), **_options(change)}): change for change in changes}


def _options(change: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in change.items() if name != "setting"}


def _nothing(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    del quick, say
    return []


@dataclass(frozen=True, kw_only=True)
class Part(Generic[S, O]):
    """One part.

    Attributes:
        name: the word after ``--part``.
        title: one line.
        variants: the lines to run; each has its own data set, method and conditions.
        figures: figures of its runs; differences compare the first one.
        worst: whether differences are also shown on their worst seed.
        rows: makes the rows of the runs.
        versus: pairs (ours, theirs) of methods whose differences ``rows`` may show, under every condition.
        computed: makes rows that need no run.
        goals: targets of the figures.
        place: parts with a smaller one are shown first.
        by_default: whether the study runs the part unasked.
        seeds: used instead of the command's seeds.
    """

    name: str
    title: str
    figures: tuple[Figure[O], ...] = ()
    worst: bool = False
    rows: Callable[[PartResults[S, O]], list[ResultRow]] = usual
    variants: tuple[StudyLine[S, O], ...] = ()
    versus: tuple[tuple[str, str], ...] = ()
    computed: Callable[[bool, Say], list[ResultRow]] = _nothing
    goals: tuple[Goal, ...] = ()
    place: int = 100
    by_default: bool = True
    seeds: tuple[int, ...] = ()

    def specs(self, seeds: Iterable[int]) -> list[S]:
        """All runs, seed by seed."""
        return [variant.spec.at(seed) for seed in self.seeds or seeds for variant in self.variants]

    def results(
        self, done: Mapping[str, O], seeds: Iterable[int], *, quick: bool = False
    ) -> PartResults[S, O]:
        """Select this part's runs."""
        seeds = tuple(self.seeds or seeds)
        runs = [
            {seed: v.view(done[key]) for seed in seeds if (key := v.spec.at(seed).key()) in done}
            for v in self.variants
        ]
        return PartResults(self, runs, quick)

    def small(self) -> Self:
        """The part with small runs, on the command's seeds."""
        return replace(self, variants=tuple(variant.small() for variant in self.variants), seeds=())
