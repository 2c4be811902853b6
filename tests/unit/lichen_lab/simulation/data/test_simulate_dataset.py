import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from lichen_lab.simulation.cli import Dataset, app
from lichen_lab.simulation.data import dataset_tasks
from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.online_fleet import OnlineSetting
from lichen_lab.simulation.option_rules import options_of
from lichen_lab.simulation.training.simulated_table import show
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from tests.support.lab.simulated import task, windows
from tests.support.tasks import stream, task_toml

TASK = task_toml(
    ("low", "middle", "high"),
    "other",
    streams={"a": stream(2, 16.0), "b": stream(3, 16.0)},
    window={"length_s": 1.0},
    network={"feature_dim": 8, "hidden_dim": 16, "encoders": {key: {"width": 4, "depth": 1} for key in "ab"}},
    config={"batch": 16},
    rounds={"count": 2},
)


def split(part: str, seed: int) -> DataSplit:
    del seed
    count = 300 if part == "train" else 90
    return DataSplit(windows(count, 1 if part == "train" else 50), np.zeros(count, np.int64))


def small_task(*, rounds: int = 2, seed: int = 0, config: Any = None, codec: str = "int8") -> Task:
    del codec
    made = task(config={"epochs": 1, "batch": 16, "lr": 0.1, **(config or {})}, seed=seed)
    return made.model_copy(update={"rounds": made.rounds.model_copy(update={"count": rounds})})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = OnlineSetting(devices=3, pool=60, size=40, step=10)
    small = replace(dataset_tasks.UCI_HAR, load=split, setting=setting)
    monkeypatch.setattr(dataset_tasks, "STUDIES", {"uci-har": small})
    monkeypatch.setattr(dataset_tasks.DatasetStudy, "task", lambda _, **given: small_task(**given))


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["--dataset", "uci-har", *words])


def report(*words: str) -> dict[str, Any]:
    done = invoke(*words, "--format", "json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("made")
def test_simulate_dataset_uses_its_own_task_and_setting() -> None:
    found = report("--alone")
    assert found["dataset"] == "uci-har"
    assert found["task"] == "toy"
    assert found["devices"] == ["d0", "d1", "d2"]
    assert found["setting"] == {
        **vars(OnlineSetting()),
        "devices": 3,
        "pool": 60,
        "size": 40,
        "step": 10,
    }
    assert [record["round"] for record in found["rounds"]] == [1, 2]
    assert set(found["alone"]) == {"d0", "d1", "d2"}
    assert sum(map(sum, found["confusion"])) == 90
    assert found["bytes_up"] == sum(sum(record["bytes_up"].values()) for record in found["rounds"])


@pytest.mark.usefixtures("made")
def test_simulate_dataset_options_reach_the_devices_and_the_method() -> None:
    found = report(
        *("--devices", "2", "--alpha", "5", "--pool", "50", "--size", "30", "--step", "5", "--rounds", "3"),
        *("--missing-share", "0.9", "--affected-rounds", "1", "--noisy-rounds", "1", "--snr-db", "-5"),
        *("--option", "impute=zero_input", "--option", "epochs=2", "--seed", "6", "--every", "2"),
    )
    assert found["setting"] == {
        "devices": 2,
        "alpha": 5.0,
        "pool": 50,
        "size": 30,
        "step": 5,
        "missing_share": 0.9,
        "affected_rounds": 1.0,
        "noisy_rounds": 1.0,
        "snr_db": -5.0,
    }
    assert (found["seed"], found["config"]["impute"], found["config"]["epochs"]) == (6, "zero_input", 2)
    assert [bool(record["metrics"]) for record in found["rounds"]] == [False, True, True]
    # 27 of 30 windows lack one modality, and every window with the noisy one is of low quality
    assert found["rounds"][0]["accepted"]["d0"]["imputed"] == 27
    assert found["rounds"][0]["accepted"]["d0"]["low_quality"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("made")
def test_simulate_dataset_with_another_task_prototype_devices_and_personal_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.toml"
    file.write_text(TASK)
    words = ["--task", str(file), "--prototype-devices", "1", "--option", "personal=head", "--personal"]
    found = report(*words, "--alone")
    assert found["task"] == "other"
    assert found["roles"] == {"d0": "train", "d1": "train", "d2": "prototype"}
    assert set(found["alone"]) == {"d0", "d1"}
    assert set(found["personal"]) == {"d0", "d1", "d2"}
    kept = found["personal"]
    # the device without torch keeps no head: its own model is the global one
    assert kept["d2"]["global"] == kept["d2"]["personal"]
    assert any(kept[name]["global"] != kept[name]["personal"] for name in ("d0", "d1"))
    show(found)
    assert "own classes" in capsys.readouterr().out


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["--data", "."], "--data and --dataset exclude each other"),
        (["--test", "x.npz"], "--test and --dataset exclude each other"),
        (["--missing-share", "1.5"], "--missing-share"),
        (["--devices", "0"], "--devices"),
        (["--threads", "2", "--workers", "2"], "--threads"),
        (["--missing-share", "0.9"], "--missing-share does nothing without --affected-rounds"),
        (["--affected-rounds", "0.5"], "--affected-rounds does nothing without --missing-share"),
        (["--snr-db", "0"], "--snr-db does nothing without --noisy-rounds"),
    ],
)
def test_simulate_dataset_wrong_usage_is_status_2(words: list[str], culprit: str) -> None:
    done = invoke(*words)
    assert done.exit_code == 2
    assert culprit in " ".join(done.output.replace("│", " ").split())


def test_simulate_options_of_a_dataset_without_one_are_wrong_usage() -> None:
    done = CliRunner().invoke(app, ["--task", "t.toml", "--data", ".", "--missing-share", "0.5"])
    assert done.exit_code == 2
    assert "--missing-share goes with --dataset" in " ".join(done.output.replace("│", " ").split())
    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["--dataset", "uci_har"]).exit_code == 2


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["--alpha", "0"], "alpha"),
        (["--size", "90"], "size"),
        (["--prototype-devices", "4"], "--prototype-devices"),
        (["--option", "impute"], "KEY=VALUE"),
        (["--option", "impute=guess"], "impute"),
        (["--personal"], "has private tensors"),
        (["--task", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_simulate_dataset_names_what_is_wrong(words: list[str], culprit: str) -> None:
    done = invoke("--rounds", "1", *words)
    assert isinstance(done.exception, Misconfigured)
    assert culprit in str(done.exception)


def test_simulate_dataset_that_does_not_fit_the_task_is_refused(
    tmp_path: Path, made: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del made
    (tmp_path / "task.toml").write_text(TASK.replace("channels = 2", "channels = 1"))
    done = invoke("--task", str(tmp_path / "task.toml"))
    assert isinstance(done.exception, Misconfigured)
    assert "uci-har: x/a" in str(done.exception)
    monkeypatch.setattr(dataset_tasks, "STUDIES", {})
    assert "no data set 'uci-har'" in str(invoke().exception)


def test_simulate_options_are_json_or_words() -> None:
    told = options_of(["a=1", "b=true", "c=head", "d=0.5", 'e="7"', "f=x=y"])
    assert told == {"a": 1, "b": True, "c": "head", "d": 0.5, "e": "7", "f": "x=y"}


def test_simulate_the_command_line_knows_all_studies() -> None:
    assert {one.value for one in Dataset} == set(dataset_tasks.STUDIES)


@pytest.mark.data
@pytest.mark.parametrize("name", list(dataset_tasks.STUDIES))
def test_simulate_studies_fit_their_data(name: str) -> None:
    chosen = dataset_tasks.study(name)
    try:
        train, test = (chosen.load(part, 1).windows for part in ("train", "test"))
    except Misconfigured as error:
        pytest.skip(str(error))
    made = chosen.task(rounds=2, seed=1, config={"batch": 64})
    assert (made.rounds.count, made.seed, made.config) == (2, 1, {"batch": 64})
    for part in (train, test):
        window_set.check(part, made, name)
        assert set(part.y_B) == set(range(len(made.labels)))
    fleet = chosen.setting.fleet(train, 0)
    assert len(fleet["d0"].at(1)) == chosen.setting.size


def test_simulate_data_sets_that_are_not_here_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(locations, "roots", lambda: (tmp_path,))
    done = invoke("--rounds", "1")
    assert isinstance(done.exception, Misconfigured)
    assert "uci_har is not here" in str(done.exception)
