"""The pages on reliability name only existing things: tests, commands, faults and steps of the matrix."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.main import get_command

from lichen_lab.benchmarks.cli import app
from lichen_lab.benchmarks.fault_injection.cluster.faults import CLUSTER_FAULTS
from lichen_lab.benchmarks.fault_injection.cluster.matrix import CLUSTER_STEPS
from lichen_lab.benchmarks.fault_injection.faults import FAULTS
from lichen_lab.benchmarks.fault_injection.steps import STEPS, Step
from tests.support.processes.disk_table import page

ROOT = Path(__file__).parents[2]
PAGES = ("reliability.md", "fault-matrix.md", "disk-states.md")
TEXT = "\n".join((ROOT / "docs" / name).read_text() for name in PAGES)


def test_arch_every_test_that_is_named_is_there() -> None:
    named = sorted(set(re.findall(r"tests/[\w/]+\.py", TEXT)))
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_arch_each_promise_names_its_tests() -> None:
    section = TEXT.split("## The promises")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| \d \|", line)]
    assert [row[2] for row in rows] == list("1234567")
    assert [row for row in rows if "tests/" not in row.split("|")[-2]] == []


def test_arch_every_bench_that_is_named_is_there() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]  # typer's type does not say: a group
    assert set(re.findall(r"lichen bench ([a-z]+)", TEXT)) <= known


def test_arch_the_table_of_disks_is_the_one_that_is_tested() -> None:
    assert TEXT.split("<!-- disks: begin -->\n")[1].split("<!-- disks: end -->")[0] == page()


@pytest.mark.parametrize(
    ("name", "faults", "steps"),
    [("matrix", FAULTS, STEPS), ("cluster", CLUSTER_FAULTS, CLUSTER_STEPS)],
)
def test_arch_the_table_has_every_fault_and_every_step(
    name: str, faults: Iterable[str], steps: tuple[Step, ...]
) -> None:
    table = TEXT.split(f"<!-- table faults/{name} -->")[1].split("<!-- end -->")[0]
    lines = [line for line in table.strip().splitlines() if not set(line) <= set("|- ")]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert rows[0][1:] == [step.name for step in steps]
    assert [row[0] for row in rows[1:]] == list(faults)
    assert {len(row) for row in rows} == {len(steps) + 1}
