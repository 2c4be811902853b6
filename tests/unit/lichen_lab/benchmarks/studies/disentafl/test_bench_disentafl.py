"""``lichen bench disentafl``: its runs, store, parts and command, on made-up runs and a made fleet."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli
from lichen_lab.benchmarks.run_cache import ROOT
from lichen_lab.benchmarks.studies.disentafl import STUDY, store
from lichen_lab.benchmarks.studies.disentafl import names as n
from lichen_lab.benchmarks.studies.disentafl import run_spec as module
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.data.made import build
from lichen_lab.benchmarks.studies.disentafl.part import (
    EVERYBODY,
    PERSONAL,
    Part,
    Results,
    above,
    in_errors,
    of_kind,
    paired,
)
from lichen_lab.benchmarks.studies.disentafl.parts import table
from lichen_lab.benchmarks.studies.disentafl.run_spec import One, run
from lichen_lab.benchmarks.studies.disentafl.settings import Outcome, Setting
from lichen_lab.benchmarks.study.study import Study, Wish
from models.methods.disentafl import DisentAflConfig
from protocol.errors import Misconfigured
from tests.support.disentafl_study import made_up

SEEDS = (0, 1, 2)
parts = STUDY.parts


def quiet(_line: str) -> None:
    pass


def finished(part: Part) -> Results:
    done = {one.key(): made_up(one) for one in part.ones(SEEDS)}
    return part.results(done, SEEDS)


@pytest.fixture(params=parts.names())
def part(request: pytest.FixtureRequest) -> Part:
    return parts.part(request.param)


def test_bench_disentafl_each_line_of_a_part_has_a_name_of_its_own(part: Part) -> None:
    lines = [(one.one.fleet, one.method, one.under) for one in part.variants]
    assert len(lines) == len(set(lines))
    assert {one.one.fleet for one in part.variants} <= set(v.FLEETS)
    assert part.title


def test_bench_disentafl_goals_speak_about_rows_that_there_are_and_none_of_a_quick_run(part: Part) -> None:
    made = finished(part)
    rows = part.rows(made)
    runs_goals = [goal for goal in part.goals if goal.setting == EVERYBODY]
    for goal in runs_goals:
        assert any(goal.concerns(row) for row in rows), goal
    small = part.small()
    done = {one.key(): made_up(one) for one in small.ones((0,))}
    quick = part.rows(small.results(done, (0,), quick=True))
    assert bool(quick) == bool(part.variants)
    assert not [(goal, row) for goal in runs_goals for row in quick if goal.concerns(row)]


def test_bench_disentafl_quick_is_one_seed_of_small_fleets_and_two_rounds(part: Part) -> None:
    small = part.small()
    assert all(one.small and one.setting.rounds == 2 for one in small.ones((0,)))
    assert {one.seed for one in small.ones((0,))} <= {0}


def test_bench_disentafl_tables_and_tuning_share_no_seed_and_tuning_no_test_window() -> None:
    for tune in map(parts.part, ("tune", "options")):
        assert not {one.seed for one in tune.ones(range(v.SEEDS))} & set(range(v.SEEDS))
        assert all(one.tuning for one in tune.ones(()))
    assert not any(one.tuning for one in parts.part("table").ones((0,)))


def test_bench_disentafl_every_method_is_tuned_over_the_same_grid_on_every_fleet() -> None:
    tried: dict[tuple[str, str], set[float]] = {}
    for variant in parts.part("tune").variants:
        tried.setdefault((variant.one.fleet, variant.method), set()).add(variant.one.setting.lr)
    assert tried == {(fleet, title): set(v.GRID) for fleet in v.FLEETS for title in v.METHODS}
    assert all(lr in v.GRID for by_title in v.BEST_LR.values() for lr in by_title.values())
    assert all(set(by_title) <= set(v.METHODS) for by_title in v.BEST_LR.values())


def test_bench_disentafl_every_option_that_is_tried_is_one_that_the_method_has() -> None:
    from lichen_lab.benchmarks.studies.disentafl.baselines import BASELINES  # noqa: PLC0415 - torch
    from lichen_lab.benchmarks.studies.disentafl.baselines.loop import options_of  # noqa: PLC0415 - likewise

    for title, tried in v.TRIED.items():
        for options in ({}, *tried):
            one = v.one(v.MERGE_FA, title, **options)
            if one.method == n.OURS:
                DisentAflConfig.model_validate(one.setting.options)
            else:
                options_of(BASELINES[one.method], one.setting)


def _outcome(by_device: dict[str, float]) -> Outcome:
    personal = {name: {"label": value} for name, value in by_device.items()}
    return Outcome(personal=personal, kinds={name: name[0] for name in by_device})


def test_bench_disentafl_differences_are_paired_by_seed_and_by_kind() -> None:
    ours = {0: _outcome({"a1": 80, "a2": 60, "b1": 50}), 1: _outcome({"a1": 90, "b1": 10})}
    theirs = {0: _outcome({"a1": 70, "a2": 60, "b1": 55}), 2: _outcome({"a1": 1})}
    assert paired(ours, theirs, of_kind("a")) == [5.0]
    assert paired(ours, theirs, of_kind("b")) == [-5.0]
    assert in_errors([1.0, 2.0, 3.0]) == pytest.approx([2 * 3**0.5])
    assert in_errors([1.0]) == in_errors([1.0, 1.0]) == []


def test_bench_disentafl_the_best_baseline_is_of_the_fleet_and_the_worst_kind_is_told() -> None:
    levels = dict.fromkeys(v.METHODS, 50.0) | {n.TITLES[n.FEDAVG]: 60.0, n.AVG: 65.0, n.KD: 99.0}
    part = parts.part("table")

    def made(one: One) -> Outcome:
        title = next(t.method for t in part.variants if t.one.at(one.seed) == one)
        kind_b = -20.0 if title == n.AVG else 0.0
        made = _outcome({"a1": levels[title] + one.seed, "b1": levels[title] + kind_b})
        return replace(made, aggregate={name: {"label": levels[title]} for name in made.personal})

    rows = part.rows(part.results({one.key(): made(one) for one in part.ones(SEEDS)}, SEEDS))
    found = {(r.dataset, r.metric): r.mean for r in rows if r.method == n.AVG}
    assert found[v.VEHICLE, PERSONAL] == 65.0 - 10 + 0.5
    assert found[v.VEHICLE, above(n.TITLES[n.LOCAL])] == 5.0
    assert found[v.VEHICLE, f"as the fleet gives it: {above(n.TITLES[n.FEDAVG])}"] == 5.0
    assert found[v.VEHICLE, table.BEST_OTHER] == -5.0, "KD is no baseline"
    assert found[v.VEHICLE, table.of("a")] == 15.0
    assert found[v.VEHICLE, table.WORST] == -5.0


def test_bench_disentafl_a_run_is_of_its_fleet_and_names_the_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = build(0, devices=4, train=12, test=8)
    monkeypatch.setattr(module, "_fleet", lambda *_: fleet)
    setting = Setting(rounds=1, batch=8, width=16, latent=8, hidden=8, options={"tokens": 4})
    for name in (n.OURS, n.ALIGN_FEDAVG):
        outcome = run(One("made", name, setting))
        assert outcome.kinds == {m.name: m.kind for m in fleet.members}
        assert set(outcome.personal) == set(outcome.kinds)


def test_bench_disentafl_tuning_looks_at_no_test_window(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = build(0, devices=2, train=20, test=8)
    monkeypatch.setattr(module.fleets, "fleet", lambda *_, **__: fleet)
    module._fleet.cache_clear()
    cut = module._fleet("made", 0, True, False)
    module._fleet.cache_clear()
    for whole_, part_ in zip(fleet.members, cut.members, strict=True):
        assert len(part_.train) + len(part_.test) == len(whole_.train)


def test_bench_disentafl_finished_runs_are_found_again_and_a_key_is_of_all_of_a_run(tmp_path: Path) -> None:
    plain = One(v.VEHICLE, n.OURS)
    others = [
        plain.at(1),
        replace(plain, method=n.LOCAL),
        replace(plain, fleet=v.UCI_HAR),
        replace(plain, setting=replace(plain.setting, lr=0.1)),
        replace(plain, setting=replace(plain.setting, options={"align": 0.0})),
        replace(plain, tuning=True),
        replace(plain, small=True),
    ]
    assert len({one.key() for one in (plain, *others)}) == 1 + len(others)
    file = tmp_path / "runs.jsonl"
    store.store(file).put(plain, made_up(plain))
    assert store.store(file).get(plain) == made_up(plain)
    assert store.store(file).get(others[0]) is None


def test_bench_disentafl_the_code_version_sees_every_source_that_it_names() -> None:
    for name in store.SOURCES:
        assert (ROOT / name).exists(), name


def test_bench_disentafl_the_command_measures_what_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Wish] = []

    def results(_study: object, wish: Wish, _say: object) -> list[Results]:
        asked.append(wish)
        return [finished(parts.part("table"))]

    monkeypatch.setattr(Study, "results", results)
    runs = tmp_path / "runs.jsonl"
    words = ["--part", "table", "--seeds", "3", "--workers", "2", "--resume", str(runs)]
    done = CliRunner().invoke(cli.app, ["disentafl", *words, "--format", "json"])
    assert done.exit_code == 0, done.output
    assert asked == [Wish(("table",), 3, 0, 2, runs)]
    assert n.AVG in done.stdout


def test_bench_disentafl_an_interrupted_bench_makes_only_what_is_left(tmp_path: Path) -> None:
    made: list[One] = []

    def noting(one: One) -> Outcome:
        made.append(one)
        return made_up(one)

    study = replace(STUDY, run=noting)
    wish = Wish(("table",), seeds=1, workers=1, resume=tmp_path / "runs.jsonl")
    study.results(wish, quiet)
    once = len(made)
    assert once == len(parts.part("table").variants)
    study.results(replace(wish, seeds=2), quiet)
    assert len(made) == 2 * once
    assert {one.seed for one in made[once:]} == {1}


def test_bench_disentafl_the_help_names_every_part_and_those_that_must_be_asked_for() -> None:
    usual, asked = cli._STUDIES["disentafl"][1].split("; and ")
    for name in parts.names():
        assert re.search(rf"\b{name}\b", usual if parts.part(name).by_default else asked), name


def test_bench_disentafl_an_unknown_part_or_fleet_ends_with_its_words() -> None:
    done = CliRunner().invoke(cli.app, ["disentafl", "--part", "tabel"])
    assert done.exit_code == 78
    assert "no part 'tabel'" in done.stderr
    with pytest.raises(Misconfigured, match="no fleet 'bus'"):
        run(One("bus", n.LOCAL))
