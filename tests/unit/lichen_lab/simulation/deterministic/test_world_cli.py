"""``lichen simulate --faults``."""

import json

import pytest

from lichen import cli
from lichen_lab.simulation.deterministic import batch, world
from lichen_lab.simulation.deterministic import cli as world_cli
from lichen_lab.simulation.deterministic.outcome import WorldOutcome
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario


def simulate(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", "--faults", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_world_cli_sums_up_for_people(capsys) -> None:
    code, out, _ = simulate(capsys, "--seeds", "2")
    assert code == 0
    assert "no promise was broken" in out
    assert "2 seeds" in out


@pytest.mark.long
def test_world_cli_sums_up_for_programs_and_shows_progress(capsys, monkeypatch) -> None:
    monkeypatch.setattr(world_cli, "_EVERY_S", 0.0)
    code, out, err = simulate(capsys, "--seeds", "2", "--seed", "5", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert (found["first_seed"], found["seeds"], found["violations"]) == (5, 2, 0)
    assert found["steps"] > 100
    assert found["faults"]
    assert "1 of 2 seeds, 0 failed" in err


def test_world_cli_a_broken_promise_is_status_70_and_says_how_to_see_it_again(capsys, monkeypatch) -> None:
    def broken(seed: int, *, scenario: Scenario, **_: object) -> WorldOutcome:
        return WorldOutcome(seed, scenario, "at 1.0 s, step 9: it was forgotten", trace=["one", "two"])

    monkeypatch.setattr(batch, "run_seed", broken)
    code, out, _ = simulate(capsys, "--seeds", "3")
    assert code == 70
    assert "3 seeds broke a promise" in out
    assert "lichen simulate --faults --seed 2 --trace" in out
    code, out, _ = simulate(capsys, "--seeds", "1", "--seed", "4", "--format", "json")
    assert code == 70
    assert json.loads(out)["failed"][0]["seed"] == 4
    assert json.loads(out)["failed"][0]["trace"] == ["one", "two"]


@pytest.mark.long
def test_world_cli_traces_one_seed(capsys) -> None:
    code, out, _ = simulate(capsys, "--seed", "3", "--trace")
    assert code == 0
    assert "coordinator begins life 1" in out
    assert "seed 3: no promise was broken" in out
    assert world.run_seed(3).mark in out, "the trace changes nothing"


def test_world_cli_tells_of_the_bytes_that_the_journals_of_secure_rounds_had(capsys) -> None:
    code, out, _ = simulate(capsys, "--secure", "--seeds", "1", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["journal_bytes"] > 1000
    assert abs(found["deviations"]) < 8 < found["deviations_of_control"]


def test_world_cli_takes_one_kind_of_worlds(capsys) -> None:
    code, _, err = simulate(capsys, "--secure", "--cluster", "--seeds", "1")
    assert code == 2
    assert "exclude each other" in err


def test_world_cli_names_the_kind_of_a_world_to_be_run_again() -> None:
    for kind, option in (
        ("secure", "--secure"),
        ("private", "--private"),
        ("secure_tables", "--secure-tables"),
    ):
        outcome = WorldOutcome(4, world.draw(4), kind=kind)
        assert f"--faults {option} --seed 4 " in batch.replay(outcome)


def test_world_cli_runs_the_tables_of_secure_rounds_alone(capsys) -> None:
    code, out, _ = simulate(capsys, "--secure-tables", "--seeds", "5")
    assert code == 0
    assert "sum opened" in out
    code, out, _ = simulate(capsys, "--secure-tables", "--seed", "3", "--trace")
    assert code == 0
    assert "KeysAnnounced" in out


def test_world_cli_without_faults_still_asks_for_data(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate"])
    assert ended.value.code == 2
    assert "--task" in capsys.readouterr().err


@pytest.mark.long
def test_world_two_processes_come_to_the_same(capsys) -> None:
    _, alone, _ = simulate(capsys, "--seeds", "2", "--format", "json")
    _, both, _ = simulate(capsys, "--seeds", "2", "--format", "json", "--workers", "2")
    one, two = json.loads(alone), json.loads(both)
    assert {**one, "seconds": 0} == {**two, "seconds": 0}
