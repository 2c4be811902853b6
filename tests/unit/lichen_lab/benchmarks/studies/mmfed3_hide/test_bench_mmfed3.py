"""``lichen bench mmfed3_hide``: its parts, store, page and command, on made-up runs."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.mmfed3_hide import STUDY, federation, fleets, pykeen_side, run
from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.parts import bytes as travel
from lichen_lab.benchmarks.studies.mmfed3_hide.parts import full, options, table
from lichen_lab.benchmarks.studies.mmfed3_hide.parts import throughput as speed
from lichen_lab.benchmarks.studies.mmfed3_hide.report import PAGE, matrix
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import (
    METHOD,
    KnowledgeGraphFleet,
    MmFed3Outcome,
    MmFed3Run,
)
from lichen_lab.benchmarks.studies.mmfed3_hide.shared import task_of
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import MRR, Results
from lichen_lab.benchmarks.study.part import Part, above, least
from models.registry import method
from protocol.errors import Misconfigured
from tests.support.lab.mmfed3_study import TINY, made_up, small_fleet
from tests.support.lab.pages import check_whole

SEEDS = (0, 1, 2)
parts = STUDY.parts


def finished(part: Part[Any, Any], seeds: tuple[int, ...] = SEEDS) -> Results:
    return part.results({one.key(): made_up(one) for one in part.specs(seeds)}, seeds)


@pytest.fixture(params=parts)
def part(request: pytest.FixtureRequest) -> Part[Any, Any]:
    return parts[request.param]


def test_bench_mmfed3_every_option_is_one_that_the_method_has(part: Part[Any, Any]) -> None:
    fleet = small_fleet()
    for one in part.specs((0,)):
        task = task_of(fleet, one.setting, 0)
        method(task.method).configure(task)


def test_bench_mmfed3_tuning_looks_at_no_test_fact(monkeypatch) -> None:
    asked: list[KnowledgeGraphFleet] = []
    whole = small_fleet()
    monkeypatch.setattr(fleets, "dealt", lambda *_: whole)
    monkeypatch.setattr(fleets, "_graph", lambda _: None)
    monkeypatch.setitem(federation.RUNS, METHOD, lambda fleet, *_: asked.append(fleet))
    for tuning in (True, False):
        run(MmFed3Run(fleets.BUSY, setting=TINY, tuning=tuning))
    seen = [{np.array_equal(j.test_N3, j.valid_N3) for j in fleet.judges} for fleet in asked]
    assert seen == [{True}, {False}]


def test_bench_mmfed3_what_reads_no_features_is_run_once_for_all_rates() -> None:
    runs = {title: set() for title in (v.FEDE, v.S_IND, v.MM_CEN, v.OURS)}
    for line in parts["rates"].variants:
        if line.method in runs:
            runs[line.method].add(line.spec.key())
    assert {title: len(keys) for title, keys in runs.items()} == {
        v.FEDE: 1,
        v.S_IND: 1,
        v.MM_CEN: 1,
        v.OURS: 5,
    }
    assert runs[v.FEDE] <= {one.key() for one in parts["table"].specs((0,))}


def test_bench_mmfed3_the_round_that_validates_best_counts_and_differences_are_paired() -> None:
    part = parts["table"]
    level = {v.OURS: (0.45, 0.43), v.MMFEDE: (0.40, 0.44)}

    def made(one: MmFed3Run) -> MmFed3Outcome:
        title = next(line.method for line in part.variants if line.spec.at(one.seed) == one)
        return made_up(one, level.get(title, (0.3, 0.3))[one.seed])

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs((0, 1))}, (0, 1)))
    found = {(row.method, row.metric): row.mean for row in rows}
    assert found[v.OURS, MRR] == pytest.approx(44.0)
    assert found[v.OURS, above(v.MMFEDE)] == pytest.approx(2.0)
    assert found[v.OURS, least(v.MMFEDE)] == pytest.approx(-1.0)
    missed = [goal for goal in part.goals for row in rows if goal.concerns(row) and not goal.met(row)]
    assert [goal.metric for goal in missed] == [least(v.MMFEDE)]
    (sheet,) = matrix(rows)
    assert sheet.columns == ("nothing", "AE", "CRA", "MMIN", "HidE")
    by_line = dict(sheet.lines)
    assert list(by_line) == [v.FEDE, *v.FLEETS]
    assert by_line[v.MMFED3][-1] == pytest.approx(44.0)
    assert by_line[v.FEDE][1:] == (None,) * 4


def test_bench_mmfed3_the_best_fusion_is_named_with_its_worst_seed() -> None:
    part = parts["fusions"]

    def made(one: MmFed3Run) -> MmFed3Outcome:
        concat = one.setting.options["fusion"] == "concat" and one.setting.options["dual"]
        return made_up(one, 0.44 - 0.01 * one.seed if concat else 0.43)

    rows = part.rows(part.results({one.key(): made(one) for one in part.specs((0, 1))}, (0, 1)))
    (told,) = [row for row in rows if row.metric == options.ABOVE[v.S_IND]]
    assert (told.method, told.setting) == (v.OURS, "r = 50 %, fusion: concatenation")
    assert told.mean == pytest.approx(0.0)


def test_bench_mmfed3_bytes_are_told_beside_all_rows_in_float32() -> None:
    rows = travel.PART.rows(finished(travel.PART, (0,)))
    found = {(row.setting, row.metric): row.mean for row in rows}
    assert found[travel.CHOSEN, travel.SHARE] == pytest.approx(0.15)
    assert found[travel.WHOLE, travel.LOST] == 0.0


def test_bench_mmfed3_what_was_reached_early_is_the_best_until_then() -> None:
    outcome = made_up(MmFed3Run("made"), 0.33)
    assert outcome.within(150.0) == outcome.looks[1]
    assert outcome.within(59.0) is None
    rows = full.PART.rows(finished(full.PART, (0,)))
    assert {row.mean for row in rows if row.metric == full.CPU} == {3.0}


def test_bench_mmfed3_speed_is_told_with_pykeens_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, case, told = small_fleet(), replace(speed.CASES[0], dim=8), []
    size = len(next(iter(fleet.devices.values())))
    monkeypatch.setattr(speed, "epoch_s", lambda *_: 0.5)
    monkeypatch.setattr(pykeen_side, "here", lambda: False)
    rows = speed.of(case, fleet, told.append)
    assert {row.mean for row in rows if row.metric == speed.SPEED} == {size / 0.5}
    assert speed.TIMES not in {row.metric for row in rows}
    monkeypatch.setattr(pykeen_side, "here", lambda: True)
    monkeypatch.setattr(
        pykeen_side, "triples_a_second", lambda way, facts_N3, *_, **__: len(facts_N3) / (1 + (way == "LCWA"))
    )
    rows = speed.of(case, fleet, told.append)
    (times,) = [row.mean for row in rows if row.metric == speed.TIMES]
    assert times == 2.0, "the faster of its two ways is compared with"
    assert parts["throughput"].goals[0].metric == speed.TIMES


def test_bench_mmfed3_a_key_is_of_all_of_a_run_and_an_outcome_survives_json() -> None:
    plain = v.spec(v.MMFED3)
    others = [
        plain.at(1),
        v.spec(v.MMFED3, "hide"),
        v.spec(v.MMFEDE),
        v.spec(v.MMFED3, graph=fleets.WHOLE),
        v.spec(v.MMFED3, rate=0.1),
        v.spec(v.MMFED3, setting={"lr": 0.1}),
        v.spec(v.MMFED3, tuning=True),
        v.spec(v.MM_IND),
        replace(plain, small=True),
    ]
    assert len({one.key() for one in (plain, *others)}) == 1 + len(others)
    assert STUDY.read(json.loads(json.dumps(asdict(made_up(plain))))) == made_up(plain)


def test_bench_mmfed3_an_unknown_graph_is_named() -> None:
    with pytest.raises(Misconfigured, match="no graph 'WN18'"):
        run(MmFed3Run("WN18"))


def test_bench_mmfed3_the_page_is_whole_and_fetches_nothing(tmp_path: Path) -> None:
    results = [finished(parts[name], SEEDS[:2]) for name in ("table", "rates", "bytes", "full")]
    timed = [ResultRow(fleets.BUSY, v.FEDE, "first of three clients", speed.SPEED, 9.0)]
    results.append(replace(finished(parts["throughput"]), computed=timed))
    rows = [row for one in results for row in one.rows()]
    PAGE.write(results, rows, tmp_path / "new" / "page.html")
    page = (tmp_path / "new" / "page.html").read_text()
    check_whole(page)
    for words in (
        v.OURS,
        "what fills absent features",
        "MRR by minutes of CPU",
        "triples a second",
        table.UNDER,
    ):
        assert words in page
