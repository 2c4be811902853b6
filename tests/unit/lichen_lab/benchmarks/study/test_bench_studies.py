"""What holds of every study: its parts, commands, tuning and store, on made-up runs."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli, registry
from lichen_lab.benchmarks.study.part import Part, PartResults
from lichen_lab.benchmarks.study.run_cache import ENGINE, files_of
from lichen_lab.benchmarks.study.study import Study, StudyRequest
from tests.support.lab import disentafl_study, labels_study, mmfed3_study, qqr_study, tactfl_study
from tests.support.studies import privacy_study

SEEDS = (0, 1, 2)
MADE_UP: dict[str, Callable[[Any], Any]] = {
    "qqr": qqr_study.made_up,
    "disentafl": disentafl_study.made_up,
    "tactfl": tactfl_study.made_up,
    "mmfed3_hide": mmfed3_study.made_up,
    "labels": labels_study.made_up,
    "privacy": privacy_study.made_up,
}


@dataclass(frozen=True)
class Case:
    """A part of a study, and how its runs are made up."""

    study: Study[Any, Any]
    part: Part[Any, Any]

    def finished(self, seeds: tuple[int, ...] = SEEDS, *, quick: bool = False) -> PartResults[Any, Any]:
        made_up = MADE_UP[self.study.name]
        done = {one.key(): made_up(one) for one in self.part.specs(seeds)}
        return self.part.results(done, seeds, quick=quick)


CASES = {
    f"{name}-{part}": Case(registry.study(name), registry.study(name).parts[part])
    for name in MADE_UP
    for part in registry.study(name).parts
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=MADE_UP)
def study(request: pytest.FixtureRequest) -> Study[Any, Any]:
    return registry.study(request.param)


def test_bench_studies_are_all_here() -> None:
    assert set(MADE_UP) == set(cli._STUDIES)


def test_bench_study_each_line_of_a_part_has_a_name_of_its_own_and_options_that_there_are(case: Case) -> None:
    lines = [(line.dataset, line.method, line.under) for line in case.part.variants]
    assert len(lines) == len(set(lines))
    assert all(line.spec.key() for line in case.part.variants)
    assert case.part.title


def test_bench_study_every_difference_is_between_variants_that_there_are(case: Case) -> None:
    named = {name for pair in case.part.versus for name in pair}
    assert named <= {one.method for one in case.part.variants}


def test_bench_study_goals_speak_about_rows_that_there_are_and_none_of_a_quick_run(case: Case) -> None:
    part, rows = case.part, case.part.rows(case.finished())
    for goal in part.goals if part.variants else ():
        if "reaches" in goal.metric or "% of its own" in goal.metric:
            continue  # made-up curves need not get there
        assert any(goal.concerns(row) for row in rows), goal
    small = Case(case.study, part.small())
    assert all(one.small and one.setting.rounds == 2 for one in small.part.specs((0,)))
    assert {one.seed for one in small.part.specs((0,))} <= {0}, "quick is one seed, whatever a part names"
    quick = small.part.rows(small.finished((0,), quick=True))
    assert bool(quick) == bool(part.variants)
    assert not [(goal, row) for goal in part.goals for row in quick if goal.concerns(row)]


def test_bench_study_tables_and_tuning_share_no_seed_and_tuning_no_test_data(case: Case) -> None:
    usual = set(range(case.study.seeds))
    runs = case.part.specs(usual)
    chooses = case.part.name.endswith("tune") or case.part.name == "options"
    if not chooses:
        assert not any(one.tuning for one in runs)
        return
    assert not case.part.by_default
    assert not {one.seed for one in runs} & usual
    assert all(one.tuning for one in runs)


def test_bench_study_goals_and_help_name_every_part(study: Study[Any, Any]) -> None:
    parts = study.parts
    goals = {goal for name in parts for goal in parts[name].goals}
    assert set(registry.bench(study.name).goals) == goals
    usual, asked = cli._STUDIES[study.name].split("; and ")
    for name in parts:
        assert re.search(rf"\b{name}\b", usual if parts[name].by_default else asked), name


def test_bench_study_the_command_measures_what_it_was_asked(
    study: Study[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[StudyRequest] = []
    name = next(iter(study.parts))
    case = CASES[f"{study.name}-{name}"]

    def results(_study: object, wish: StudyRequest, _say: object) -> list[PartResults[Any, Any]]:
        asked.append(wish)
        return [case.finished()]

    monkeypatch.setattr(Study, "results", results)
    runs = tmp_path / "runs.jsonl"
    words = ["--part", name, "--seeds", "3", "--workers", "2", "--resume", str(runs)]
    done = CliRunner().invoke(cli.app, [study.name, *words, "--format", "json"])
    assert done.exit_code == 0, done.output
    assert asked == [StudyRequest((name,), 3, 0, 2, runs)]
    assert all(line.method in done.stdout for line in case.part.variants if line.method.isascii())


def test_bench_study_an_unknown_part_ends_with_its_words(study: Study[Any, Any]) -> None:
    done = CliRunner().invoke(cli.app, [study.name, "--part", "tabel"])
    assert done.exit_code == 78
    assert "no part 'tabel'" in done.stderr


def test_bench_study_a_finished_run_is_found_again_and_no_other(
    study: Study[Any, Any], tmp_path: Path
) -> None:
    file, made_up = tmp_path / "runs.jsonl", MADE_UP[study.name]
    one = study.parts[next(iter(study.parts))].variants[0].spec
    others = [one.at(1), replace(one, tuning=True), replace(one, small=True), replace(one, fleet="another")]
    study.store(file).put(one, made_up(one))
    assert study.store(file).get(one) == made_up(one)
    assert [study.store(file).get(other) for other in others] == [None] * len(others)


@pytest.mark.parametrize("name", cli._STUDIES)
def test_bench_studies_finished_runs_depend_on_all_that_their_own_sources_import(name: str) -> None:
    study = registry.study(name)
    counted = {path for module in (*study.sources, *study.figures, *ENGINE) for path in files_of(module)}
    own = {path for path in counted if study.package.replace(".", "/") in str(path)}
    named = {
        one.module
        for path in own
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith(f"{study.package}.")
    }
    named -= {f"{study.package}.variants"}  # a run's options, which its key has
    assert {module for module in named if not counted.issuperset(files_of(module))} == set()
