import io
import json
from dataclasses import replace
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli, registry
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, as_json, as_table, row
from protocol.errors import Misconfigured, Transient


def bench(**changes: Any) -> Bench:
    return Bench(**{"name": "toy", "run": lambda _quick, _say: [ROW], "goals": (), **changes})


ROW = ResultRow("none", "toy[infer]", "small", "bytes", 1234567.0, 2.5, 3, 0.5)


def shown(made: Bench, rows: list[ResultRow]) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(as_table(made, rows))
    return out.getvalue()


def test_bench_a_row_holds_mean_and_sample_deviation() -> None:
    made = row("d", "m", "s", "x", [1.0, 2.0, 3.0])
    assert (made.mean, made.sd, made.n) == (2.0, 1.0, 3)
    assert row("d", "m", "s", "x", [4.0]).sd == 0.0


@pytest.mark.parametrize("values", [[], [float("nan")], [1.0, float("inf")]])
def test_bench_a_figure_that_was_not_measured_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="no finite measurement"):
        row("d", "m", "s", "x", values)


def test_bench_json_has_exactly_the_documented_keys() -> None:
    one = json.loads(as_json(bench(), [ROW]))
    assert set(one) == {"bench", "commit", "rows"}
    assert list(one["rows"][0]) == ["dataset", "method", "setting", "metric", "mean", "sd", "n", "seconds"]


def test_bench_a_missed_goal_is_said_beside_the_figure_it_speaks_about() -> None:
    goals = (Goal("bytes", 2048, setting="small"), Goal("bytes", 1, setting="other"))
    text = shown(bench(goals=goals), [ROW])
    assert "toy[infer]" in text
    assert "< 2048 MISSED" in text
    assert "< 1 " not in text
    assert "< 2e+06 met" in shown(bench(goals=(Goal("bytes", 2e6),)), [ROW])
    assert Goal("margin", 0, above=True).words(ResultRow("", "", "", "margin", 0.0)) == "> 0 MISSED"


def test_bench_registry_finds_them_by_folder() -> None:
    assert {"wire", "fold", "device", "idle", "observer", "spar"} <= set(registry.names())
    for name in registry.names():
        found = registry.bench(name)
        assert found.name == name
    with pytest.raises(Misconfigured, match=r"no benchmark 'wrie'; there are .*wire"):
        registry.bench("wrie")


def test_bench_cli_json_is_one_object_a_line_and_errors_do_not_stop_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(_quick: bool, _say: Any) -> list[ResultRow]:  # noqa: FBT001 - a benchmark's signature
        raise Transient("the broker went away")

    toys = {"one": bench(name="one", run=away), "two": bench(name="two")}
    monkeypatch.setattr(registry, "names", lambda: tuple(toys))
    monkeypatch.setattr(registry, "bench", toys.__getitem__)
    done = CliRunner().invoke(cli.app, ["all", "--quick", "--format", "json"])
    assert json.loads(done.stdout.splitlines()[-1])["bench"] == "two"
    assert "the broker went away" in done.stderr
    assert done.exit_code == 75


def test_bench_cli_writes_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(registry, "names", lambda: ("toy",))
    monkeypatch.setattr(registry, "bench", lambda _name: bench())
    done = CliRunner().invoke(cli.app, ["all", "--out", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "new" / "toy.json").read_text())["rows"][0]["mean"] == 1234567.0
    assert "1,234,567" in done.stdout


def test_bench_that_breaks_a_promise_ends_with_70_and_a_missed_goal_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missed = (Goal("bytes", 2048),)
    toys = {"goal": bench(goals=missed), "promise": replace(bench(name="promise"), promises=missed)}
    monkeypatch.setattr(registry, "bench", toys.__getitem__)
    for name, status in (("goal", 0), ("promise", 70)):
        monkeypatch.setattr(registry, "names", lambda name=name: (name,))
        done = CliRunner().invoke(cli.app, ["all"])
        assert done.exit_code == status
        assert "MISSED" in done.stdout


def test_bench_each_has_words_for_its_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(registry.names()) == set(registry.WORDS)
    fresh = typer.Typer()
    monkeypatch.setattr(cli, "app", fresh)
    cli._add("wire")
    assert registry.WORDS["wire"] in CliRunner().invoke(fresh, ["--help"]).stdout
