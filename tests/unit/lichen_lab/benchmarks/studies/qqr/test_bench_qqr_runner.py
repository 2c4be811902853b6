"""Many runs: each once, over processes, nothing finished is lost."""

from dataclasses import replace
from pathlib import Path

import pytest

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.studies.qqr import STUDY
from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun
from lichen_lab.benchmarks.study import parallel_runs
from lichen_lab.benchmarks.study.parallel_runs import run_each
from lichen_lab.benchmarks.study.run_cache import RunCache
from lichen_lab.benchmarks.study.study import distinct
from protocol.errors import Misconfigured, Transient
from tests.support.lab.qqr_study import killed_in_seed_1, made_up, refused_in_seed_1

RUNS = [QqrRun(seed=seed) for seed in range(4)]


def quiet(_line: str) -> None:
    pass


def run_all(
    runs: list[QqrRun], store: RunCache[QqrRun, QqrOutcome], say: Say, **how: object
) -> dict[str, QqrOutcome]:
    return run_each(distinct(runs), store, say, **how)  # type: ignore[arg-type]


def test_bench_qqr_the_same_training_is_run_once_with_every_probe() -> None:
    asked = [replace(RUNS[0], probes=p) for p in (("personal",), (), ("dead_sensor",))]
    (one,) = distinct(asked).values()
    assert one.probes == ("dead_sensor", "personal")
    assert list(distinct([*asked, RUNS[1]]).values()) == [one, RUNS[1]]


def test_bench_qqr_an_interrupted_bench_goes_on_where_it_was(tmp_path: Path) -> None:
    file, made = tmp_path / "runs.jsonl", []

    def noting(one: QqrRun) -> QqrOutcome:
        made.append(one.seed)
        return made_up(one)

    def until_2(one: QqrRun) -> QqrOutcome:
        if one.seed == 2:
            raise KeyboardInterrupt
        return noting(one)

    with pytest.raises(KeyboardInterrupt):
        run_all(RUNS, STUDY.store(file), quiet, workers=1, run=until_2)
    assert made == [0, 1]
    done = run_all(RUNS, STUDY.store(file), quiet, workers=1, run=noting)
    assert made == [0, 1, 2, 3]
    assert done == {one.key(): made_up(one) for one in RUNS}


def test_bench_qqr_a_probe_that_a_finished_run_was_not_asked_is_asked(tmp_path: Path) -> None:
    store = STUDY.store(tmp_path / "runs.jsonl")
    run_all(RUNS[:1], store, quiet, workers=1, run=made_up)
    wanted = replace(RUNS[0], probes=("personal",))
    done = run_all([wanted], store, quiet, workers=1, run=made_up)
    assert set(done[wanted.key()].probes) == {"personal"}


def test_bench_qqr_workers_give_what_one_process_gives(tmp_path: Path) -> None:
    alone = run_all(RUNS, STUDY.store(tmp_path / "1"), quiet, workers=1, run=made_up)
    assert run_all(RUNS, STUDY.store(tmp_path / "2"), quiet, workers=2, run=made_up) == alone


def test_bench_qqr_a_killed_worker_is_said_and_what_is_finished_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    # The first run is in the store before the second is begun: the pool takes no more than it has workers.
    run_all(RUNS[:1], STUDY.store(file), quiet, workers=1, run=made_up)
    with pytest.raises(Transient, match="run it again"):
        run_all(RUNS[:3], STUDY.store(file), quiet, workers=2, run=killed_in_seed_1)
    assert STUDY.store(file).get(RUNS[0]) is not None


def test_bench_qqr_an_error_of_a_run_comes_through_a_worker(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no such data"):
        run_all(RUNS, STUDY.store(tmp_path / "runs"), quiet, workers=2, run=refused_in_seed_1)


def test_bench_qqr_says_how_many_are_left_and_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    now = iter(range(0, 6000, 60))
    monkeypatch.setattr(parallel_runs.time, "monotonic", lambda: float(next(now)))
    run_all(RUNS, STUDY.store(tmp_path / "runs"), said.append, workers=1, run=made_up)
    assert said == [
        "4 runs",
        "1 of 4 runs, about 3 min left",
        "2 of 4 runs, about 2 min left",
        "3 of 4 runs, about 60 s left",
    ]
    said.clear()
    run_all(RUNS, STUDY.store(tmp_path / "runs"), said.append, workers=1, run=made_up)
    assert said == [f"4 of 4 runs are in {tmp_path / 'runs'}"]
