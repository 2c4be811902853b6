"""`make mutants`: what it changes, which sample it draws, and how it judges a mutant."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import plan, report
from tests.mutants.mutant import mutants
from tests.mutants.trial import Verdict

SOURCE = '''"""A module."""
LIMIT = 3

class Box:
    @property
    def full(self) -> bool | None:
        """Whether 4 are in."""
        return len(self.items) >= LIMIT and self.closed

    def empty(self, words):
        self.items.clear()
        log.info("emptied", n=5)
        match words:
            case [first] if first:
                return replace(self, first=first, n=1)
        raise ValueError(f"{words!r:>9}")
'''


def changed() -> set[tuple[str, str]]:
    return {(mutant.before, mutant.after) for mutant in mutants("box.py", SOURCE)}


def test_statements_conditions_and_numbers_are_changed_also_under_decorators_and_at_module_level() -> None:
    whole = "len(self.items) >= LIMIT and self.closed"
    assert changed() >= {
        ("3", "4"),
        (whole, "len(self.items) >= LIMIT or self.closed"),
        (whole, "self.closed"),
        ("len(self.items) >= LIMIT", "len(self.items) > LIMIT"),
        ("self.items.clear()", "pass"),
        ("first", "not first"),
        ("replace(self, first=first, n=1)", "replace(self, n=1)"),
        ("raise ValueError(f'{words!r:>9}')", "pass"),
    }


def test_what_decides_nothing_is_left_alone() -> None:
    before = {before for before, _ in changed()}
    assert not any("log.info" in text or text in ("4", "5", "9", "bool | None") for text in before)


def test_each_mutant_is_one_change_that_parses_and_no_two_are_equal() -> None:
    found = mutants("box.py", SOURCE)
    assert len({mutant.source for mutant in found}) == len({mutant.key for mutant in found}) == len(found)
    for mutant in found:
        ast.parse(mutant.source)
        differing = [
            pair
            for pair in zip(SOURCE.splitlines(), mutant.source.splitlines(), strict=True)
            if len(set(pair)) > 1
        ]
        assert len(differing) == 1


def test_a_sample_depends_on_its_seed_and_not_on_what_else_there_is() -> None:
    chosen = [group for group in plan.groups() if group.name in ("losses", "spool")]
    losses = [group for group in chosen if group.name == "losses"]
    both, others = ([mutant.key for _, mutant in plan.sample(plan.ROOT, chosen, seed)] for seed in (1, 2))
    alone = [mutant.key for _, mutant in plan.sample(plan.ROOT, losses, 1)]
    assert both != others
    assert sorted(both) == sorted(others)
    assert [key for key in both if key in set(alone)] == alone


def test_every_accepted_survivor_is_a_mutant_that_can_still_be_made() -> None:
    known = {module for group in plan.groups() for module in group.modules}
    for key in plan.accepted():
        module = key.split()[0]
        assert module in known
        assert key in {mutant.key for mutant in mutants(module, (plan.ROOT / module).read_text())}


def test_a_run_passes_if_few_live_and_each_has_a_reason() -> None:
    [first, *_] = mutants("box.py", SOURCE)
    results = [report.Result("box", first, Verdict("killed"))] * 19
    alive = report.Result("box", first, Verdict("alive"))
    assert report.failings([*results, alive], {first.key: "It is equal."}) == []
    assert report.failings([*results, alive], {}) == [
        "1 survivors have no reason in tests/mutants/accepted.toml"
    ]
    assert report.failings([*results, alive, alive], {first.key: "It is equal."}) == [
        "2 of 21 live; at most 5% may"
    ]
    assert "It is equal." in report.page([alive], {first.key: "It is equal."}, "make mutants")


BOX = """
def most(a):
    return a[0]

def spin(n):
    while n:
        n -= 1

def unused():
    return 1
"""
TESTS = """
from box import most, spin
def test_twice(): assert most([1]) == most([1])
def test_first(): assert most([1, 5]) == 1
def test_spin(): spin(3)
"""
TRIAL = """
import sys
from pathlib import Path
from tests.mutants import reach
from tests.mutants.mutant import mutants
from tests.mutants.trial import Bench
tree = Path(sys.argv[1])
(tree.parent / "reach").mkdir()
tests = reach.trace(tree, ["box.py"], "test_box.py", tree.parent / "reach")
bench = Bench(tree, budget_s=20.0, least_s=1)
tried = {"return None", "n += 1"}
for mutant in mutants("box.py", (tree / "box.py").read_text()):
    if mutant.after in tried:
        verdict = bench.try_mutant(mutant, tests)
        print(mutant.function, mutant.after, verdict.outcome, verdict.killer, sep=" | ")
print((tree / "box.py").read_text())
"""


@pytest.mark.long
def test_a_mutant_is_killed_times_out_or_is_not_reached(tmp_path: Path) -> None:
    tree = tmp_path / "r"
    tree.mkdir()
    (tree / "box.py").write_text(BOX)
    (tree / "test_box.py").write_text(TESTS)
    (tree / "conftest.py").write_text("")
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n  data\n  mosquitto\n  long\n")
    words = [sys.executable, "-c", TRIAL, str(tree)]
    ended = subprocess.run(words, cwd=plan.ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[:3] == [
        "most | return None | killed | test_box.py::test_first",
        "spin | n += 1 | timed out | ",
        "unused | return None | unreached | ",
    ]
    assert ended.stdout.endswith(f"{BOX}\n"), "the copy is as it was"
