"""Finished runs of other versions of the code: taken over where their like comes out as it was."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli, registry
from lichen_lab.benchmarks.studies.qqr import STUDY
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun, QqrSetting
from lichen_lab.benchmarks.studies.tactfl import STUDY as TACTFL
from lichen_lab.benchmarks.study import run_cache
from lichen_lab.benchmarks.study.rekey import rekey
from lichen_lab.benchmarks.study.run_cache import digest
from protocol.errors import Misconfigured
from tests.support.lab.qqr_study import made_up

Change = Callable[[], None]
SLOW = [QqrRun(seed=seed, setting=QqrSetting({"lr": 0.04})) for seed in (0, 1, 2)]
FAST = [QqrRun(seed=seed, setting=QqrSetting({"lr": 0.16})) for seed in (0, 1)]


def quiet(_line: str) -> None:
    pass


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Change:
    """Has the code change."""
    versions = iter(range(9))

    def change() -> None:
        mark = f"version {next(versions)} "
        monkeypatch.setattr(run_cache, "digest", lambda *named: mark + digest(*named))

    return change


def finish(file: Path, runs: list[QqrRun]) -> None:
    for one in runs:
        STUDY.store(file).put(one, made_up(one))


def test_bench_runs_whose_like_comes_out_as_it_was_count_again_and_others_do_not(
    tmp_path: Path, changed: Change
) -> None:
    file, made, said = tmp_path / "runs.jsonl", list[QqrRun](), list[str]()
    alone = QqrRun(setting=QqrSetting({"lr": 0.32}))
    finish(file, [*SLOW, *FAST, alone, *(replace(one, small=True) for one in SLOW)])
    changed()

    def now(one: QqrRun) -> QqrOutcome:
        """Slower than before, and with other figures for one of the settings."""
        made.append(one)
        outcome = replace(made_up(one), seconds=9.0)
        return replace(outcome, refused=1) if one.setting == FAST[0].setting else outcome

    taken, lost = rekey(replace(STUDY, run=now), file, said.append, workers=1)
    assert (taken, lost) == (2, 1)
    assert made == [SLOW[0], FAST[0]], "one of each kind is enough, and a run that is alone needs none"
    store = STUDY.store(file)
    assert all(store.get(one) is not None for one in SLOW)
    assert [store.get(one) is None for one in (*FAST, alone)] == [False, True, True]
    assert "figures are others" in said[-1]
    assert rekey(replace(STUDY, run=now), file, quiet, workers=1) == (0, 1)
    assert len(made) == 2, "what was made again was not kept"


@pytest.mark.parametrize("name", sorted(cli._STUDIES))
def test_bench_the_code_version_sees_every_source_that_it_names(name: str) -> None:
    study = registry.study(name)
    named = (*study.figures, *study.sources, *run_cache.ENGINE)
    assert all(run_cache.files_of(module) for module in named)
    assert len(set(named)) == len(named)
    with pytest.raises(FileNotFoundError, match="not_there"):
        run_cache.files_of("not_there.at_all")


def test_bench_rekey_is_a_command_of_studies_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["rekey", "tactfl", "--resume", str(tmp_path / "runs.jsonl")])
    assert done.exit_code == 0, done.output
    assert "0 finished runs count" in done.stdout
    with pytest.raises(Misconfigured, match="no study 'spar'"):
        CliRunner().invoke(cli.app, ["rekey", "spar"], catch_exceptions=False)
    assert TACTFL.name == "tactfl"
