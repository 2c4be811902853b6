"""Settings, and finished runs on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from lichen_lab.benchmarks.studies.qqr import STUDY
from lichen_lab.benchmarks.studies.qqr.settings import QqrRun, QqrSetting, StreamConditions, evaluated
from lichen_lab.benchmarks.study import run_cache
from lichen_lab.benchmarks.study.run_cache import RunFormat, digest
from runtime.outputs import NotWritten
from tests.support.lab.qqr_study import made_up


def test_bench_qqr_a_key_is_of_what_is_trained() -> None:
    plain = QqrRun()
    same = QqrRun(setting=QqrSetting({"impute": "pnr", "lr": 0.08, "batch": 128}), probes=("personal",))
    assert plain.key() == same.key(), "an option at its default, or a probe, is no other training"
    others = [
        plain.at(1),
        replace(plain, setting=QqrSetting({"lr": 0.04})),
        replace(plain, conditions=StreamConditions(snr_db=5.0)),
        replace(plain, setting=QqrSetting(codec="int4")),
        replace(plain, setting=QqrSetting(modalities=("gyroscope",))),
        replace(plain, setting=QqrSetting(rounds=39)),
        replace(plain, fleet="av-mnist"),
        replace(plain, small=True),
    ]
    assert len({plain.key(), *(other.key() for other in others)}) == 1 + len(others)


def test_bench_qqr_an_option_that_there_is_not_is_an_error_before_anything_runs() -> None:
    with pytest.raises(ValidationError, match="imputt"):
        QqrSetting({"imputt": "pnr"})


def test_bench_qqr_the_figure_is_the_mean_of_the_last_evaluations() -> None:
    assert [r for r in range(1, 41) if evaluated(r, 40)] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 38, 40]
    assert [r for r in range(1, 3) if evaluated(r, 2)] == [2]
    made = replace(made_up(QqrRun()), curve={4: 0.1, 35: 0.2, 36: 0.5, 38: 0.6, 40: 0.7})
    assert made.accuracy == pytest.approx(60.0)


def test_bench_qqr_finished_runs_are_found_again(tmp_path: Path) -> None:
    file, setting = tmp_path / "new" / "runs.jsonl", QqrRun(probes=("personal",))
    STUDY.store(file).put(setting, made_up(setting))
    assert STUDY.store(file).get(setting) == made_up(setting)
    assert STUDY.store(file).get(setting.at(1)) is None


def test_bench_qqr_probes_of_two_runs_add_up_and_one_not_asked_is_not_answered(tmp_path: Path) -> None:
    file, base = tmp_path / "runs.jsonl", QqrRun()
    asked = [replace(base, probes=(probe,)) for probe in ("personal", "dead_sensor")]
    for one in asked:
        STUDY.store(file).put(one, made_up(one))
    both = STUDY.store(file).get(replace(base, probes=("personal", "dead_sensor")))
    assert both is not None
    assert set(both.probes) == {"personal", "dead_sensor"}
    assert STUDY.store(file).get(replace(base, probes=("unseen_class",))) is None


def test_bench_qqr_a_torn_line_costs_its_own_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    for seed in (0, 1):
        STUDY.store(file).put(QqrRun(seed=seed), made_up(QqrRun(seed=seed)))
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    store = STUDY.store(file)
    assert store.get(QqrRun(seed=0)) is not None
    assert store.get(QqrRun(seed=1)) is None
    store.put(QqrRun(seed=1), made_up(QqrRun(seed=1)))
    assert STUDY.store(file).get(QqrRun(seed=1)) is not None, "the torn line swallowed the next one"


def test_bench_qqr_runs_of_other_code_count_only_where_wished_and_with_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, setting = tmp_path / "runs.jsonl", QqrRun()
    STUDY.store(file).put(setting, made_up(setting))
    changed: set[tuple[str, ...]] = {(*STUDY.figures, *STUDY.sources, *run_cache.ENGINE)}
    monkeypatch.setattr(
        run_cache,
        "digest",
        lambda sources, *more: "changed" if sources in changed else digest(sources, *more),
    )
    assert STUDY.store(file).get(setting) is None
    assert STUDY.store(file, any_code=True).get(setting) is not None
    changed.add(STUDY.figures)
    assert STUDY.store(file, any_code=True).get(setting) is None


def test_bench_qqr_a_cache_in_a_wrong_place_is_no_error_and_a_named_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "file" / "runs.jsonl"
    monkeypatch.setattr(RunFormat, "default", lambda _form: file)
    store = STUDY.store()
    store.put(QqrRun(), made_up(QqrRun()))
    assert store.get(QqrRun()) is not None
    with pytest.raises(NotWritten, match=r"runs\.jsonl"):
        STUDY.store(file).put(QqrRun(), made_up(QqrRun()))


def test_bench_qqr_a_folder_instead_of_a_file_is_told_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(NotWritten, match=tmp_path.name):
        STUDY.store(tmp_path)


def test_bench_qqr_a_line_says_what_it_is_of(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    STUDY.store(file).put(QqrRun(seed=7), made_up(QqrRun(seed=7)))
    told = json.loads(file.read_text())
    assert told["setting"]["seed"] == 7
    assert set(told) == {"key", "code", "figures", "setting", "outcome"}
