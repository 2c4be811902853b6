"""Which tests run which lines of the modules under mutation: only those judge a mutant, cheapest first."""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutants import forked
from tests.mutants.mutant import Mutant

_LIMITS = forked.Limits(cpu_s=600, wall_s=1800)


@dataclass(frozen=True)
class Test:
    """One test: its id, the processor time it takes, and the lines it runs in each module."""

    name: str
    cpu_s: float
    lines: dict[str, frozenset[int]]

    def reaches(self, mutant: Mutant) -> bool:
        """Whether it runs the mutant's statement. A statement that runs on import concerns all tests."""
        lines = self.lines.get(mutant.module, frozenset())
        if mutant.on_import:
            return bool(lines)
        return any(line in lines for line in range(mutant.line, mutant.last + 1))


def trace(tree: Path, modules: Iterable[str], file: str, answers: Path) -> list[Test]:
    """The tests of one file that pass, as they were when neither the file nor the modules had changed.

    Raises:
        RuntimeError: If pytest cannot run the file at all.
    """
    modules = sorted(modules)
    digest = hashlib.sha256()
    for path in [file, *modules]:
        digest.update((tree / path).read_bytes())
    remembered = answers / f"{digest.hexdigest()[:24]}.json"
    if not remembered.exists():
        log = answers / f"{Path(file).stem}.log"
        recorder = _Recorder(tree, modules, remembered)
        ended = forked.run(tree, arguments([file], tree), recorder, log, _LIMITS)
        if not remembered.exists():
            raise RuntimeError(f"{file}: pytest ended with {ended.code}; its words are in {log}")
    recorded: dict[str, Any] = json.loads(remembered.read_text())
    return [
        Test(name, test["cpu_s"], {module: frozenset(lines) for module, lines in test["lines"].items()})
        for name, test in recorded.items()
    ]


def arguments(files: Iterable[str], tree: Path) -> list[str]:
    """How pytest is called: in our order, without what needs real data, a broker or minutes."""
    quiet = ["-q", "--no-header", "--tb=short", f"--basetemp={tree.parent / 't'}"]
    quick = ["--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio"]
    return [*quiet, *quick, "-m", "not data and not mosquitto and not long", *files]


class _Recorder:
    """A plugin of pytest that notes, test by test, the lines of the modules that it runs."""

    def __init__(self, tree: Path, modules: Iterable[str], out: Path) -> None:
        self._paths = {str(tree / module): module for module in modules}
        self._out = out
        self._tests: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, set[int]] = {}
        self._bad: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines = {module: set() for module in self._paths.values()}
        begun = time.process_time()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        lines = {module: sorted(lines) for module, lines in self._lines.items() if lines}
        self._tests[item.nodeid] = {"cpu_s": round(time.process_time() - begun, 3), "lines": lines}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self._bad.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        good = {name: test for name, test in self._tests.items() if name not in self._bad and test["lines"]}
        self._out.write_text(json.dumps(good))

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        module = self._paths.get(frame.f_code.co_filename)
        if module is None:
            return None
        seen = self._lines[module]
        seen.add(frame.f_lineno)

        def line(frame: FrameType, _event: str, _argument: object) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line
