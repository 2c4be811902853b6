"""A study: turns parts into runs, runs into rows, and rows into a report."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from lichen_lab.benchmarks.result import Bench, ResultRow, Say
from lichen_lab.benchmarks.study.parallel_runs import run_each
from lichen_lab.benchmarks.study.part import Part, PartResults
from lichen_lab.benchmarks.study.run_cache import RunFormat
from lichen_lab.benchmarks.study.run_spec import O, S
from protocol.errors import Misconfigured


@dataclass(frozen=True)
class StudyRequest:
    """Options of a study's command.

    Attributes:
        parts: names of parts; empty: the parts that run by default.
        seeds: number of repetitions; None: the study's.
        seed: the first seed.
        workers: processes; None: one a CPU.
        resume: file of finished runs; None: the cache's.
        any_code: whether to use finished runs of other versions of the code.
        report: file of the report to write.
        quick: one seed, small runs.
    """

    parts: tuple[str, ...] = ()
    seeds: int | None = None
    seed: int = 0
    workers: int | None = None
    resume: Path | None = None
    any_code: bool = False
    report: Path | None = None
    quick: bool = False


def distinct(specs: Iterable[S]) -> dict[str, S]:
    """Each run once, by key, in order of first use, with the probes of all its uses."""
    by_key: dict[str, S] = {}
    for spec in specs:
        same = by_key.setdefault(spec.key(), spec)
        if spec.probes != same.probes:
            by_key[spec.key()] = replace(same, probes=tuple(sorted({*same.probes, *spec.probes})))
    return by_key


@dataclass(frozen=True, kw_only=True)
class Study(RunFormat[S, O]):
    """A benchmark of several parts: a package with ``parts`` and ``report``.

    Attributes:
        run: makes one run; importable by name in a worker, imports torch only when called.
        seeds: repetitions without ``--seeds``.
        order: sort key of the runs.
    """

    run: Callable[[S], O]
    seeds: int = 5
    order: Callable[[S], Any] = attrgetter("seed", "fleet")

    @cached_property
    def parts(self) -> dict[str, Part[S, O]]:
        """The study's parts by name, in display order; a module may hold several related ones."""
        package = import_module(f"{self.package}.parts")
        names = [f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__)]
        parts = [p for name in names for p in vars(import_module(name)).values() if isinstance(p, Part)]
        return {part.name: part for part in sorted(parts, key=lambda part: (part.place, part.name))}

    def chosen(self, wanted: tuple[str, ...]) -> list[Part[S, O]]:
        """The named parts; without names, the parts that run by default.

        Raises:
            Misconfigured: there is no such part; the message lists those there are.
        """
        for name in wanted:
            if name not in self.parts:
                known = ", ".join(self.parts)
                raise Misconfigured(f"no part {name!r} in bench {self.name}; there are {known}")
        by_default = [name for name, part in self.parts.items() if part.by_default]
        return [self.parts[name] for name in dict.fromkeys(wanted or by_default)]

    def bench(self) -> Bench:
        """Its entry in the registry."""

        def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
            return self.measure(StudyRequest(quick=quick), say)

        goals = tuple(goal for part in self.parts.values() for goal in part.goals)
        return Bench(self.name, run, goals=goals)

    def measure(self, request: StudyRequest, say: Say) -> list[ResultRow]:
        """Make the requested runs and write the report.

        Raises:
            Misconfigured: an unknown part, or a data set is not here.
            NotWritten: a file cannot be written.
            Transient: a worker was killed.
        """
        results = [
            replace(each, computed=each.part.computed(request.quick, say))
            for each in self.results(request, say)
        ]
        rows = [row for each in results for row in each.rows()]
        if request.report is not None:
            self._write(results, rows, request.report)
            say(f"the report is in {request.report}")
        return rows

    def _write(self, results: Sequence[PartResults[S, O]], rows: Sequence[ResultRow], path: Path) -> None:
        """Write the report; imports matplotlib only here."""
        import_module(f"{self.package}.report").PAGE.write(results, rows, path)

    def results(self, request: StudyRequest, say: Say) -> list[PartResults[S, O]]:
        """The runs of the requested parts."""
        wanted = self.chosen(request.parts)
        if request.quick:
            wanted = [part.small() for part in wanted]
        count = 1 if request.quick else request.seeds or self.seeds
        seeds = range(request.seed, request.seed + count)
        store = self.store(request.resume, any_code=request.any_code)
        specs = [spec for part in wanted for spec in part.specs(seeds)]
        # By seed first, so that an interrupted study can be compared.
        specs.sort(key=self.order)
        done = run_each(distinct(specs), store, say, self.run, request.workers)
        return [part.results(done, seeds, quick=request.quick) for part in wanted]
