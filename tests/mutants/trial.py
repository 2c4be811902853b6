"""One mutant against the tests that reach it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.mutants import forked, reach
from tests.mutants.mutant import Mutant

_CPU_TIMES = 5
_WALL_S, _WALL_TIMES = 120, 60  # a busy machine gives a child a small part of its time
_FIRST_MTIME = 1_000_000_000


@dataclass(frozen=True)
class Verdict:
    """The outcome of a mutant: `killed`, `timed out`, `alive`, or `unreached` where no test runs its line."""

    outcome: str
    killer: str = ""
    cpu_s: float = 0.0
    tests: int = 0


@dataclass
class Bench:
    """A copy of the tree in which mutants are tried.

    Attributes:
        tree: The copy.
        budget_s: Tests beyond so much processor time, the cheapest first, are not tried.
        least_s: The processor time that any trial may take.
    """

    tree: Path
    budget_s: float
    least_s: int = 5
    _changes: int = field(default=0)

    def try_mutant(self, mutant: Mutant, tests: Sequence[reach.Test]) -> Verdict:
        """Run the tests that reach it until one fails."""
        chosen = self._affordable([test for test in tests if test.reaches(mutant)])
        if not chosen:
            return Verdict("unreached")
        cost_s = sum(test.cpu_s for test in chosen)
        limits = forked.Limits(int(self.least_s + _CPU_TIMES * cost_s), _WALL_S + _WALL_TIMES * cost_s)
        log = self.tree.parent / "log"
        killer = self.tree.parent / "killer"
        killer.unlink(missing_ok=True)
        files = dict.fromkeys(test.name.split("::")[0] for test in chosen)
        with self._mutated(mutant):
            order = _Order([test.name for test in chosen], killer)
            ended = forked.run(self.tree, ["-x", *reach.arguments(files, self.tree)], order, log, limits)
        if ended.code == pytest.ExitCode.OK:
            return Verdict("alive", cpu_s=ended.cpu_s, tests=len(chosen))
        if ended.code is None:
            return Verdict("timed out", cpu_s=ended.cpu_s, tests=len(chosen))
        name = killer.read_text() if killer.exists() else "import or collection"
        return Verdict("killed", name, ended.cpu_s, len(chosen))

    def _affordable(self, tests: Sequence[reach.Test]) -> list[reach.Test]:
        """The cheapest that fit into the budget, and one at least."""
        chosen, spent_s = [], 0.0
        for test in sorted(tests, key=lambda test: (test.cpu_s, test.name)):
            spent_s += test.cpu_s
            if chosen and spent_s > self.budget_s:
                break
            chosen.append(test)
        return chosen

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        """The module changed, then as it was. Each change has a time of its own: byte code is found by it."""
        path = self.tree / mutant.module
        original, times = path.read_text(), path.stat()
        self._changes += 1
        path.write_text(mutant.source)
        os.utime(path, (_FIRST_MTIME + self._changes, _FIRST_MTIME + self._changes))
        try:
            yield
        finally:
            path.write_text(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class _Order:
    """A plugin of pytest that keeps the chosen tests, in the order given, and notes which one fails."""

    def __init__(self, names: Sequence[str], killer: Path) -> None:
        self._rank = {name: i for i, name in enumerate(names)}
        self._killer = killer

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.nodeid not in self._rank]
        config.hook.pytest_deselected(items=left_out)
        items[:] = sorted(set(items) - set(left_out), key=lambda item: self._rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._killer.write_text(report.nodeid)
