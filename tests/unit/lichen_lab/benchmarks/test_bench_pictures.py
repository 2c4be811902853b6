"""Pictures that the docs draw from stored results."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli, pictures, stored_results
from lichen_lab.benchmarks.result import Bench, ResultRow, as_json
from protocol.errors import Misconfigured

DOCS = Path(__file__).parents[4] / "docs"
LAYOUT = """
[toy-rounds]
bench = "toy"
x = "round"
y = "accuracy, %"
where = { setting = "a" }
lines = [{ head = "ours", method = "ours" }, { head = "paper", method = "paper", level = true }]
points = [{ at = 1, metric = "after 1" }, { at = 2, metric = "after 2" }]
"""
ROWS = (
    ResultRow("d", "ours", "a", "after 1", 50.0, 1.0, 3),
    ResultRow("d", "ours", "a", "after 2", 70.0, 2.0, 3),
    ResultRow("d", "ours", "b", "after 2", 10.0),
    ResultRow("d", "paper", "a", "after 2", 65.0),
)


def docs(tmp_path: Path, layout: str = LAYOUT) -> Path:
    place = tmp_path / "docs"
    for folder in ("results", "pictures"):
        (place / "benchmarks" / folder).mkdir(parents=True)
    (place / "benchmarks" / "pictures" / "toy.toml").write_text(layout)
    run = as_json(Bench("toy", lambda _quick, _say: []), ROWS)
    (place / stored_results.RESULTS / "toy.json").write_text(run)
    return place


def test_bench_pictures_a_line_has_the_stored_figures_of_its_conditions(tmp_path: Path) -> None:
    place = docs(tmp_path)
    layout = pictures.layouts(place)["toy-rounds"]
    found = pictures.series("toy-rounds", layout, stored_results.rows_by_bench(place)["toy"])
    assert [(line["head"], [(at, row.mean) for at, row in points]) for line, points in found] == [
        ("ours", [(1.0, 50.0), (2.0, 70.0)]),
        ("paper", [(2.0, 65.0)]),
    ]


def test_bench_pictures_one_command_draws_them_below_the_docs(tmp_path: Path) -> None:
    place = docs(tmp_path)
    done = CliRunner().invoke(cli.app, ["pictures", "--docs", str(place)])
    assert done.exit_code == 0, done.output
    made = (place / "pictures" / "toy-rounds.png").read_bytes()
    assert made.startswith(b"\x89PNG")
    pictures.draw(place)
    assert (place / "pictures" / "toy-rounds.png").read_bytes() == made, "the same figures, the same bytes"


def test_bench_pictures_conditions_with_names_are_marks_side_by_side(tmp_path: Path) -> None:
    plain = docs(tmp_path / "plain")
    points = LAYOUT.replace("{ at = 1,", '{ at = 1, name = "one",').replace(
        "{ at = 2,", '{ at = 2, name = "two",'
    )
    named = docs(tmp_path / "named", f'{points}spread = "se"\nzero = true\n')
    files = [pictures.draw(place)[0].read_bytes() for place in (plain, named)]
    assert files[0] != files[1]
    without_x = docs(tmp_path / "x", points.replace('x = "round"\n', ""))
    assert pictures.draw(without_x)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('method = "ours"', 'method = "theirs"', "no stored figure of toy for 'ours'"),
        ('where = { setting = "a" }\n', "", "2 figures for ours at 2"),
        ('bench = "toy"', 'bench = "other"', "no stored figure of other"),
    ],
)
def test_bench_pictures_one_that_cannot_be_drawn_is_an_error(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in LAYOUT
    place = docs(tmp_path, LAYOUT.replace(old, new))
    with pytest.raises(Misconfigured, match=words):
        pictures.draw(place)
    assert not (place / "pictures").exists() or not list((place / "pictures").iterdir())
    done = CliRunner().invoke(cli.app, ["pictures", "--docs", str(place)])
    assert done.exit_code == 78


def test_bench_pictures_a_name_is_of_one_picture(tmp_path: Path) -> None:
    place = docs(tmp_path)
    (place / pictures.LAYOUTS / "zoo.toml").write_text(LAYOUT)
    with pytest.raises(Misconfigured, match=r"zoo\.toml: another file has a picture 'toy-rounds'"):
        pictures.draw(place)


def test_bench_pictures_the_committed_ones_can_be_drawn_are_small_and_stand_in_a_page() -> None:
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    rows = stored_results.rows_by_bench(DOCS)
    for name, layout in pictures.layouts(DOCS).items():
        assert pictures.series(name, layout, rows[layout["bench"]])
        assert (DOCS / pictures.PICTURES / f"{name}.png").stat().st_size < 80_000
        assert f"pictures/{name}.png" in text
    assert {path.stem for path in (DOCS / pictures.PICTURES).glob("bench-*")} == set(pictures.layouts(DOCS))
