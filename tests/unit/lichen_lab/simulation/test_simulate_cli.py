import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lichen_lab.simulation.cli import app
from models.contract import WindowSet
from models.data import window_set as windowset
from protocol.errors import Misconfigured
from tests.support.tasks import stream, task_toml

TASK = task_toml(
    ("rest", "move"),
    "toy",
    streams={"a": stream(1, 10.0)},
    window={"length_s": 1.6, "stride_s": 0.8},
    network={"feature_dim": 4, "hidden_dim": 8, "encoders": {"a": {"width": 4, "depth": 1}}},
    config={"batch": 8},
    rounds={"count": 2},
)


def window_set(seed: int, count: int = 24) -> WindowSet:
    rng = np.random.default_rng(seed)
    y = np.arange(count, dtype=np.int64) % 2
    x = (rng.standard_normal((count, 1, 16)) + 2.0 * y[:, None, None]).astype(np.float32)
    return WindowSet({"a": x}, np.ones((count, 1), np.bool_), np.ones((count, 1), np.float32), y)


def recording(path: Path) -> None:
    t = np.arange(400) / 10.0
    y = (t // 10).astype(np.int64) % 2
    values = (np.random.default_rng(5).standard_normal(400) + 2.0 * y)[:, None].astype(np.float32)
    changes = np.arange(0.0, 40.0, 10.0)
    labels = {"label/t": changes, "label/values": (changes // 10).astype(np.int64) % 2}
    np.savez(path, **{"a/t": t, "a/values": values}, **labels)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "data").mkdir()
    windowset.save(tmp_path / "data" / "one.npz", window_set(1))
    recording(tmp_path / "data" / "two.npz")
    windowset.save(tmp_path / "data" / "test.npz", window_set(9))
    return tmp_path


def words(place: Path, *more: str) -> list[str]:
    return ["--task", str(place / "task.toml"), "--data", str(place / "data"), *more]


def test_simulate_cli_takes_window_sets_and_recordings_and_compares(place: Path) -> None:
    test = str(place / "data" / "test.npz")
    done = CliRunner().invoke(app, words(place, "--test", test, "--alone", "--format", "json"))
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["devices"] == ["one", "two"]
    assert [record["round"] for record in report["rounds"]] == [1, 2]
    assert set(report["alone"]) == {"one", "two"}
    assert sum(map(sum, report["confusion"])) == 24
    assert sum(one["windows"] for one in report["by_class"].values()) == 24


def test_simulate_cli_prints_a_table(place: Path) -> None:
    done = CliRunner().invoke(app, words(place, "--rounds", "1", "--seed", "4"))
    assert done.exit_code == 0, done.output
    assert "seed 4" in done.stdout


def test_simulate_cli_ends_the_rounds_where_a_coordinator_would_and_says_so(place: Path) -> None:
    text = TASK.replace("count = 2", "count = 9\npatience = 2\ngain = 0.5")
    assert text != TASK
    (place / "task.toml").write_text(text)
    more = ("--validation", str(place / "data" / "test.npz"))
    report = json.loads(CliRunner().invoke(app, words(place, *more, "--format", "json")).stdout)
    assert report["devices"] == ["one", "two"]
    assert 2 <= len(report["rounds"]) < 9
    assert report["ended"] == "accuracy gained less than 0.5 in 2 versions"
    said = CliRunner().invoke(app, words(place, *more)).stdout
    assert f"the rounds ended with version {len(report['rounds'])}: accuracy gained" in said
    (place / "task.toml").write_text(text.replace("patience = 2", "patience = 0"))
    whole = json.loads(CliRunner().invoke(app, words(place, *more, "--format", "json")).stdout)
    assert len(whole["rounds"]) == 9
    assert "ended" not in whole


@pytest.mark.parametrize(
    ("more", "culprit"),
    [
        (["--alone"], "--test"),
        (["--test", "nowhere.npz"], "nowhere.npz"),
        (["--data", "nowhere"], "nowhere"),
        (["--task", "nowhere.toml"], "--task nowhere.toml"),
    ],
)
def test_simulate_cli_names_what_is_wrong(place: Path, more: list[str], culprit: str) -> None:
    done = CliRunner().invoke(app, words(place, *more))
    assert isinstance(done.exception, Misconfigured)
    assert culprit in str(done.exception)


def test_simulate_cli_names_the_file_that_does_not_fit(place: Path) -> None:
    (place / "data" / "three.npz").write_bytes(b"PK nothing")
    done = CliRunner().invoke(app, words(place))
    assert isinstance(done.exception, Misconfigured)
    assert "three.npz" in str(done.exception)
    np.savez(
        place / "data" / "three.npz", **{"b/t": np.arange(3.0), "b/values": np.zeros((3, 1), np.float32)}
    )
    done = CliRunner().invoke(app, words(place))
    assert "three.npz" in str(done.exception)
    assert "'toy'" in str(done.exception)


def test_simulate_cli_a_test_file_without_labels_is_refused(place: Path) -> None:
    bare = window_set(3)
    bare.y_B[:] = -1
    windowset.save(place / "bare.npz", bare)
    done = CliRunner().invoke(app, words(place, "--test", str(place / "bare.npz")))
    assert "none of its 24 windows is labelled" in str(done.exception)


def test_a_task_on_graphs_is_refused_before_any_data_is_read(place: Path) -> None:
    (place / "task.toml").write_text('name = "plant"\nmethod = "mmfed3_hide"\n[graph]\ntop_k = 3\n')
    words = ["--task", str(place / "task.toml"), "--data", str(place / "none"), "--test", str(place / "none")]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, Misconfigured)
    assert "task 'plant' has a table [graph]" in str(found.exception)
    assert "windows of streams" in str(found.exception)
