"""Stored results and the tables that the docs make of them."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli, stored_results
from lichen_lab.benchmarks.result import Bench, ResultRow, as_json
from protocol.errors import Misconfigured

DOCS = Path(__file__).parents[4] / "docs"
PAGE = "# Page\n\n<!-- table page/one -->\nold\n<!-- end -->\n\nEnd.\n"
LAYOUT = """
[one]
bench = "toy"
head = "method"
where = { metric = "accuracy, %" }
rows = "method"
digits = 1
columns = [
  { head = "first", setting = "a" },
  { head = "ours above it", method = "ours", metric = "above {method}, points", sign = true, spread = "se" },
]
"""


def printed(*rows: ResultRow, bench: str = "toy") -> str:
    """What the command of a benchmark writes."""
    return as_json(Bench(bench, lambda _quick, _say: []), rows)


def docs(tmp_path: Path, layout: str = LAYOUT) -> Path:
    """A folder of documents with one page, one table and a stored run of two methods."""
    place = tmp_path / "docs"
    for folder in ("results", "tables"):
        (place / "benchmarks" / folder).mkdir(parents=True)
    (place / "page.md").write_text(PAGE)
    (place / "benchmarks" / "tables" / "page.toml").write_text(layout)
    rows = [
        ResultRow("d", "ours", "a", "accuracy, %", 84.0, 2.0, 4),
        ResultRow("d", "theirs", "a", "accuracy, %", 81.25),
    ]
    margin = {"dataset": "d", "method": "ours", "setting": "a", "metric": "above theirs, points"}
    stored = json.loads(printed(*rows))
    stored["rows"].append({**margin, "mean": 2.75, "se": 0.5, "n": 4})
    (place / "benchmarks" / "results" / "toys.json").write_text(stored_results.as_text([stored]))
    return place


def test_bench_pages_a_table_is_made_of_stored_rows_between_its_marks(tmp_path: Path) -> None:
    place = docs(tmp_path)
    assert stored_results.render(place) == [place / "page.md"]
    assert (place / "page.md").read_text() == PAGE.replace(
        "old\n",
        "| method | first | ours above it |\n| --- | --- | --- |\n"
        "| ours | 84.0 ± 2.0 |  |\n| theirs | 81.2 | +2.8 ± 0.5 |\n",
    )
    assert stored_results.render(place) == []


def test_bench_pages_one_command_stores_what_a_bench_wrote_and_renders_it(tmp_path: Path) -> None:
    place = docs(tmp_path)
    new = tmp_path / "toy.json"
    new.write_text(printed(ResultRow("d", "theirs", "a", "accuracy, %", 99.0)))
    done = CliRunner().invoke(cli.app, ["pages", str(new), "--docs", str(place)])
    assert done.exit_code == 0, done.output
    assert "| theirs | 99.0 | +2.8 ± 0.5 |" in (place / "page.md").read_text()
    [path] = (place / "benchmarks" / "results").iterdir()
    older, newer = stored_results.read(path)
    assert [len(run["rows"]) for run in (older, newer)] == [2, 1]
    stored_results.store(newer, path.parent)
    assert stored_results.read(path) == [older, newer]


def test_bench_pages_a_run_that_broke_a_promise_is_not_stored(tmp_path: Path) -> None:
    place = docs(tmp_path)
    new = tmp_path / "kills.json"
    new.write_text(
        printed(ResultRow("d", "qqr", "20 rounds, 3 agents", "violations", 0.1, 0.3, 10), bench="kills")
    )
    done = CliRunner().invoke(cli.app, ["pages", str(new), "--docs", str(place)])
    assert (done.exit_code, len(list((place / stored_results.RESULTS).iterdir()))) == (78, 1)
    assert "broke a promise" in done.output


def test_bench_pages_a_bench_without_results_gets_a_file_and_others_stay(tmp_path: Path) -> None:
    place = docs(tmp_path)
    results = place / stored_results.RESULTS
    before = (results / "toys.json").read_bytes()
    run = json.loads(printed(ResultRow("d", "ours", "a", "accuracy, %", 1.0), bench="other"))
    assert stored_results.store(run, results) == results / "other.json"
    assert (results / "toys.json").read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"above {method}, points"', '"accuracy"', "no stored figure of toy for .'ours above it'"),
        ('setting = "a"', 'setting = "b"', "no stored figure of toy for .*'first'"),
        ('where = { metric = "accuracy, %" }\n', "", "2 figures for a cell"),
        ('bench = "toy"', 'bench = "other"', "table page/one: no stored result of other fits"),
        ("[one]", "[two]", "has no table 'page/one'"),
    ],
)
def test_bench_pages_a_table_that_cannot_be_made_is_an_error(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in LAYOUT
    place = docs(tmp_path, LAYOUT.replace(old, new))
    with pytest.raises(Misconfigured, match=words):
        stored_results.render(place)
    assert (place / "page.md").read_text() == PAGE


@pytest.mark.parametrize("text", ["{", "[1]", '{"bench": "toy", "commit": "c", "rows": [{"mean": 1}]}'])
def test_bench_pages_a_file_that_holds_no_results_is_named(tmp_path: Path, text: str) -> None:
    place = docs(tmp_path)
    (tmp_path / "toy.json").write_text(text)
    done = CliRunner().invoke(cli.app, ["pages", str(tmp_path / "toy.json"), "--docs", str(place)])
    assert done.exit_code == 78
    assert "toy.json" in done.output.replace("\n", "")


def test_bench_pages_the_committed_ones_are_made_of_the_committed_results(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    assert stored_results.render(tmp_path / "docs") == [], "run `lichen bench pages` and commit what it wrote"
    assert len(list((DOCS / stored_results.RESULTS).iterdir())) <= 18


def test_bench_pages_every_table_that_is_laid_out_stands_in_one_page() -> None:
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    for name in stored_results.layouts(DOCS):
        assert text.count(f"<!-- table {name} -->") == 1, name


def test_bench_pages_are_short() -> None:
    pages = list((DOCS / "benchmarks").glob("*.md"))
    assert len(pages) <= 22
    assert {page.name: words for page in pages if (words := len(page.read_text().split())) > 2500} == {}
