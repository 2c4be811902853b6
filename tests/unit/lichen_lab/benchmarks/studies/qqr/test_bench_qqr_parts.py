"""The parts of the study: their variants, rows, goals and page, on made-up runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli
from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.qqr import STUDY
from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.parts import both
from lichen_lab.benchmarks.studies.qqr.parts.bytes import FLOAT32, bytes_to, smoothed
from lichen_lab.benchmarks.studies.qqr.parts.quantity import BEST, LOSS_ROUNDS, all_at, loss_until
from lichen_lab.benchmarks.studies.qqr.report import PAGE
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome
from lichen_lab.benchmarks.studies.qqr.variants import Results
from lichen_lab.benchmarks.study.part import Part, paired, standard_error
from lichen_lab.benchmarks.study.study import Study, StudyRequest
from lichen_lab.benchmarks.tables import tables
from protocol.errors import Misconfigured
from tests.support.lab.pages import check_whole
from tests.support.lab.qqr_study import made_up

SEEDS = (0, 1, 2)
parts = STUDY.parts


def finished(part: Part[Any, Any]) -> Results:
    done = {setting.key(): made_up(setting) for setting in part.specs(SEEDS)}
    return part.results(done, SEEDS)


def outcome(curve: dict[int, float], each: int = 10) -> QqrOutcome:
    return QqrOutcome(curve, {r: each * r for r in curve}, {"head": each}, [], 0)


@pytest.fixture(params=parts)
def part(request: pytest.FixtureRequest) -> Part[Any, Any]:
    return parts[request.param]


def test_bench_qqr_every_goal_speaks_about_one_row(part: Part[Any, Any]) -> None:
    rows = part.rows(finished(part))
    for goal in part.goals:
        if "reaches" in goal.metric or "% of its own" in goal.metric:
            continue  # made-up curves need not get there
        assert sum(goal.concerns(row) for row in rows) == 1, goal


def test_bench_qqr_every_part_has_rows_of_every_seed(part: Part[Any, Any]) -> None:
    rows = part.rows(finished(part))
    assert rows
    counts = {row.n for row in rows if "bytes to" not in row.metric and "reaches" not in row.metric}
    assert counts <= {len(part.seeds or SEEDS), 1}
    assert len(part.seeds or SEEDS) in counts


def test_bench_qqr_parts_share_their_runs() -> None:
    keys = {name: {s.key() for s in parts[name].specs((0,))} for name in parts}
    assert keys["quantity"] & keys["quality"], "FC is PQ"
    assert keys["quantity"] & keys["bits"], "PNR with 4 bits"
    assert keys["quantity"] & keys["bytes"]
    assert keys["personal"] < keys["quantity"]
    assert len(keys["dead_sensor"] - keys["quantity"] - keys["every_round"]) == 2, "one sensor alone, twice"


def test_bench_qqr_the_tables_do_not_use_the_seeds_of_tuning() -> None:
    assert {s.seed for s in parts["tune"].specs(range(v.SEEDS))} == set(v.TUNING_SEEDS)
    grid = {(one.method, one.spec.setting.config["lr"]) for one in parts["tune"].variants}
    assert grid == {(method, lr) for method in v.QUANTITY for lr in v.GRID}


@pytest.mark.parametrize("name", ["tune", "literal_tune"])
def test_bench_qqr_rates_are_chosen_on_people_who_are_in_no_table(name: str) -> None:
    assert all(one.spec.tuning for one in parts[name].variants)
    tables = [one for part in parts.values() if not part.seeds for one in part.variants]
    assert not any(one.spec.tuning for one in tables)
    chosen = {row.mean for row in parts[name].rows(finished(parts[name])) if "grid" in row.metric}
    assert chosen <= {one.spec.setting.config["lr"] for one in parts[name].variants}


def test_bench_qqr_both_imbalances_are_met_by_what_each_line_names() -> None:
    runs = {one.method: one.spec for one in parts["both"].variants if "at 0 dB" in one.under}
    flow = runs[both.BOTH].conditions
    assert (flow.missing_share, flow.affected_rounds, flow.noisy_rounds) == (0.9, 0.5, 0.5)
    assert {one.conditions for name, one in runs.items() if name != both.NEITHER} == {flow}
    assert runs[both.NEITHER].conditions == v.CLEAN
    options = {name: one.setting.config for name, one in runs.items()}
    assert [options[both.BOTH][name] for name in ("impute", "quality", "beta")] == ["pnr", "plr", 0.5]
    assert [options[both.NORMS][name] for name in ("impute", "quality", "beta")] == ["pnr", "plr", 0.0]
    assert [options[both.PLR][name] for name in ("impute", "quality")] == ["zero_input", "plr"]
    assert [options[both.IS][name] for name in ("impute", "quality")] == ["complete_only", "none"]


def test_bench_qqr_prototypes_are_coarse_where_a_modality_is_noisy_too() -> None:
    for name, flow in (("bits", v.HALF), ("bits_noisy", v.noisy(10.0))):
        tried = {one.spec.setting.config["prototype_bits"] for one in parts[name].variants}
        assert tried == {32, 4, 3, 2}
        assert {one.spec.conditions for one in parts[name].variants} == {flow}


def test_bench_qqr_the_online_loss_is_summed_by_round_and_compared_at_the_end() -> None:
    rows = [row for row in parts["rates"].rows(finished(parts["rates"])) if "online loss" in row.metric]
    assert {row.metric for row in rows if row.method == v.ZP_INPUT} == set(map(loss_until, LOSS_ROUNDS))
    ahead = [row for row in rows if row.metric == f"{loss_until(40)}: above {v.ZP_INPUT}"]
    assert [row.method for row in ahead] == [v.PNR, v.PNR]
    assert {row.setting for row in rows} == {BEST, all_at(0.16)}


def test_bench_qqr_unasked_runs_no_sweep_and_no_tuning() -> None:
    names = [part.name for part in STUDY.chosen(())]
    assert names[0] == "quantity"
    assert not {"sweeps", "tune"} & set(names)
    assert [part.name for part in STUDY.chosen(("tune", "bits", "tune"))] == ["tune", "bits"]
    with pytest.raises(Misconfigured, match=r"no part 'bit'.*quantity"):
        STUDY.chosen(("bit",))


def test_bench_qqr_the_literal_rule_is_the_papers_whatever_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = {**v.QUANTITY, v.PNR: {"impute": "pnr_posterior", "pce_on_incomplete": True}}
    monkeypatch.setattr(v, "QUANTITY", tuned)
    literal = v.quantity(v.PNR, v.LITERAL)
    assert (literal["impute"], literal["pce_on_incomplete"], literal["normalise"]) == ("pnr", False, False)
    assert v.quantity(v.PNR)["impute"] == "pnr_posterior"
    assert v.quantity(v.ZP_INPUT, v.LITERAL)["impute"] == "zero_input"


def test_bench_qqr_differences_are_taken_seed_by_seed() -> None:
    ours = {0: outcome({40: 0.9}), 1: outcome({40: 0.7}), 3: outcome({40: 0.1})}
    theirs = {0: outcome({40: 0.8}), 1: outcome({40: 0.5}), 2: outcome({40: 0.9})}
    assert paired(ours, theirs, lambda one: one.accuracy) == pytest.approx([10.0, 20.0])
    assert standard_error([10.0, 20.0]) == pytest.approx(5.0)
    assert ResultRow("", "", "", "", 15.0, 50**0.5, 2).se == pytest.approx(5.0)
    assert standard_error([10.0]) == 0.0


def test_bench_qqr_bytes_to_an_accuracy_are_those_of_the_smoothed_mean_curve() -> None:
    runs = {
        0: outcome({4: 0.1, 8: 0.5, 12: 0.6, 16: 0.7, 20: 0.7}),
        1: outcome({4: 0.3, 8: 0.7, 12: 0.6, 16: 0.7, 20: 0.7}, each=30),
    }
    assert smoothed(runs) == pytest.approx({4: 20, 8: 40, 12: 140 / 3, 16: 190 / 3, 20: 200 / 3})
    assert bytes_to(runs, 60.0) == 20 * 16
    assert bytes_to(runs, 69.0) is None, "one lucky version is not there yet"


def test_bench_qqr_who_never_reaches_the_accuracy_misses_that_goal() -> None:
    part = parts["bytes"]
    low = {setting.key(): outcome({40: 0.3}) for setting in part.specs((0,))}
    fedavg = next(one for one in part.variants if one.method in FLOAT32)
    low[fedavg.spec.at(0).key()] = outcome({40: 0.9})
    rows = part.rows(part.results(low, (0,)))
    missed = [goal for goal in part.goals for row in rows if goal.concerns(row) and not goal.met(row)]
    assert any("reaches" in goal.metric for goal in missed)


def test_bench_qqr_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    results = [finished(part) for part in STUDY.chosen(())]
    rows = [row for one in results for row in one.part.rows(one)]
    PAGE.write(results, rows, tmp_path / "new" / "page.html")
    page = (tmp_path / "new" / "page.html").read_text()
    check_whole(page)
    assert all(f'id="part-{one.part.name}"' in page for one in results)
    assert page.count("<svg") >= len(results)
    assert re.search(r'class="(good|bad)">(met|missed)<', page)


def test_bench_qqr_a_page_of_nothing_but_one_quick_part_says_so() -> None:
    small = parts["bits"].small()
    done = {setting.key(): made_up(setting) for setting in small.specs((0,))}
    results = [small.results(done, (0,), quick=True)]
    assert "its figures mean nothing" in PAGE.html(results, small.rows(results[0]))


def test_bench_qqr_a_difference_stands_in_the_line_that_it_speaks_about() -> None:
    rows = [ResultRow("d", method, "s", "accuracy, %", 80.0, 1.0, 3) for method in ("PNR", "ZP", "IS")]
    rows += [ResultRow("d", "PNR", "s", f"above {name}, points", 1.5, 0.3, 3) for name in ("ZP", "IS")]
    (table,) = tables(rows)
    assert (table.metrics, table.margin) == (("accuracy, %",), "PNR minus this")
    assert [len(line.margins) for line in table.lines] == [0, 1, 1]
    against_one = [row for row in rows if row.method != "PNR"]
    against_one += [ResultRow("d", name, "s", "above PNR, points", -1.5, 0.3, 3) for name in ("ZP", "IS")]
    (table,) = tables(against_one)
    assert table.margin == "minus PNR"
    assert [len(line.margins) for line in table.lines] == [1, 1]


def test_bench_qqr_a_goal_speaks_about_its_method_alone() -> None:
    goal = Goal("accuracy, %", 87.5, above=True, method="PNR")
    assert goal.concerns(ResultRow("d", "PNR", "s", "accuracy, %", 90.0))
    assert not goal.concerns(ResultRow("d", "IS", "s", "accuracy, %", 90.0))


def test_bench_qqr_the_command_measures_what_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[StudyRequest] = []

    def results(_study: object, wish: StudyRequest, _say: object) -> list[Results]:
        asked.append(wish)
        return [finished(parts["bits"])]

    monkeypatch.setattr(Study, "results", results)
    page, runs = tmp_path / "page.html", tmp_path / "runs.jsonl"
    words = ["--part", "bits", "--seeds", "3", "--workers", "2", "--report", str(page), "--resume", str(runs)]
    done = CliRunner().invoke(cli.app, ["qqr", *words, "--format", "json"])
    assert done.exit_code == 0, done.output
    assert asked == [StudyRequest(("bits",), 3, 0, 2, runs, any_code=False, report=page, quick=False)]
    assert "2-bit prototypes" in page.read_text()
