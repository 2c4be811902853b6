"""A first task from recordings, which the recordings then fit."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lichen import cli
from lichen.commands.data import app as data
from lichen.commands.task import app
from models.data.labels.labels import TargetTrack
from models.data.streams.recording import Recording, Stream, write_npz
from models.registry import method
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from tests.support.agent.data import motion


def recording(seconds: float = 60.0, **changes) -> Recording:
    air = motion(seconds, 1.001, 1, 3)
    streams = {"acc": motion(seconds, 49.8, 3, 1), "air": Stream(air.t, air.values + np.float32(1013))}
    at = np.arange(0, seconds, 15.0)
    return Recording(streams, at, np.arange(len(at), dtype=np.int64) % 3, **changes)


def init(folder: Path, *words: str) -> tuple[Task, str]:
    done = CliRunner().invoke(app, ["init", str(folder / "rec"), "--out", str(folder / "task.toml"), *words])
    assert done.exit_code == 0, done.exception
    text = (folder / "task.toml").read_text()
    return Task.model_validate(tomllib.loads(text)), text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rec").mkdir()
    write_npz(tmp_path / "rec" / "a.npz", recording(names={"label": ("still", "walk", "run")}))
    return tmp_path


def test_what_is_found_is_in_the_task_and_the_recordings_fit_it(folder: Path) -> None:
    task, _ = init(folder, "--name", "steps")
    assert (task.name, task.method, task.labels) == ("steps", "qqr", ("still", "walk", "run"))
    acc, air = task.modalities
    assert (acc.name, acc.channels, acc.rate_hz, acc.offset) == ("acc", 3, 50, 0)
    assert (air.name, air.channels, air.rate_hz, air.offset) == ("air", 1, 1, 1000)
    assert 0.3 < acc.scale < 2
    assert task.window.label_rule == "whole"
    words = ["check", str(folder / "rec"), "--task", str(folder / "task.toml"), "--format", "json"]
    told = json.loads(CliRunner().invoke(data, words).stdout)
    assert told["sound"]
    assert told["files"][0]["labelled"] > 30


def test_the_example_of_a_unit_follows_from_the_name(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    streams = {name: motion(30.0, 50.0, 3, 1) for name in ("accelerometer", "gyro", "wind")}
    write_npz(
        tmp_path / "rec" / "a.npz", Recording(streams, np.arange(0, 30, 10.0), np.arange(3, dtype=np.int64))
    )
    _, text = init(tmp_path)
    units = [line.split('"')[1] for line in text.splitlines() if line.startswith("# unit")]
    assert units == ["m/s2", "rad/s", "1"]


def test_classes_without_names_and_short_activities_are_commented_on(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    short = Recording(recording().streams, np.arange(0, 60, 2.0), np.arange(30, dtype=np.int64) % 3 + 1)
    write_npz(tmp_path / "rec" / "a.npz", short)
    task, text = init(tmp_path)
    assert task.labels == ("class_0", "class_1", "class_2", "class_3")
    assert "do not name them" in text
    assert "count from 1?" in text
    assert task.window.label_rule == "majority"
    assert "last under 2 s" in text


def test_a_label_that_is_no_class_is_refused_and_not_counted_up_to(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    made = Recording(recording().streams, np.array([0.0, 30.0]), np.array([0, 2_000_000_000]))
    write_npz(tmp_path / "rec" / "a.npz", made)
    done = CliRunner().invoke(app, ["init", str(tmp_path / "rec"), "--out", str(tmp_path / "task.toml")])
    assert isinstance(done.exception, Misconfigured)
    assert "the label 2000000000: classes count from 0" in str(done.exception)
    assert not (tmp_path / "task.toml").exists()


def test_times_that_are_hardly_seconds_are_commented_on(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    streams = {name: Stream(one.t * 1000, one.values) for name, one in recording().streams.items()}
    write_npz(tmp_path / "rec" / "a.npz", Recording(streams, np.array([0.0, 9e3]), np.array([0, 1])))
    assert "are the recordings' times seconds?" in init(tmp_path)[1]
    write_npz(tmp_path / "rec" / "a.npz", recording())
    assert "times seconds" not in init(tmp_path, "--force")[1]


def test_further_targets_are_classes_or_numbers_as_they_look(folder: Path) -> None:
    at = np.arange(0, 60, 15.0)
    targets = {"side": TargetTrack(at, np.array([0.0, 1, 0, np.nan])), "speed": TargetTrack(at, at / 7)}
    write_npz(folder / "rec" / "a.npz", recording(targets=targets))
    task, _ = init(folder, "--method", "disentafl")
    side, speed = task.targets
    assert (side.name, side.labels) == ("side", ("side_0", "side_1"))
    assert (speed.name, speed.kind) == ("speed", "regression")


def test_a_task_that_is_there_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "task.toml").write_text("precious")
    with pytest.raises(SystemExit) as left:
        cli.main(["task", "init", str(folder / "rec"), "--out", str(folder / "task.toml")])
    assert left.value.code == 73
    assert "exists already; --force replaces it" in capsys.readouterr().err
    assert (folder / "task.toml").read_text() == "precious"
    init(folder, "--force")


def test_a_name_that_no_broker_takes_leaves_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(
            ["task", "init", str(folder / "rec"), "--out", str(folder / "task.toml"), "--name", "my task"]
        )
    assert left.value.code == 78
    assert "write 'my-task'" in capsys.readouterr().err
    assert not (folder / "task.toml").exists()


def test_milliseconds_are_commented_on_and_a_window_has_samples(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    slow = motion(4000.0, 0.05, 3, 1)
    at = np.array([0.0, 2000.0])
    write_npz(tmp_path / "rec" / "a.npz", Recording({"acc": slow}, at, np.array([0, 1], np.int64)))
    task, text = init(tmp_path)
    assert "are the recordings' times seconds?" in text
    assert (task.window.length_s, task.window.stride_s) == (2560, 1280)
    write_npz(tmp_path / "rec" / "a.npz", recording())
    _, text = init(tmp_path, "--force")
    assert "times seconds?" not in text


def test_images_of_known_size_and_texts_get_their_kind(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    frames = np.random.default_rng(1).integers(0, 255, (40, 3, 8, 6)).astype(np.uint8)
    t = np.arange(40) / 2
    words = np.array([f"note {at}" for at in range(40)])
    arrays: dict[str, Any] = {"eye/t": t, "eye/values": frames, "memo/t": t, "memo/text": words}
    arrays |= {"label/t": np.array([0.0, 10.0]), "label/values": np.array(["a", "b"])}
    np.savez(tmp_path / "rec" / "a.npz", **arrays)
    task, text = init(tmp_path)
    eye, memo = task.modalities
    assert (eye.kind, eye.channels, eye.height, eye.width, eye.rate_hz) == ("image", 3, 8, 6, 2)
    assert (memo.kind, memo.channels) == ("text", 512)
    assert '# kind = "cnn2d"' in text
    assert eye.augment is not None
    assert (eye.augment.shift, memo.augment) == (0.08, None)
    done = CliRunner().invoke(data, ["check", str(tmp_path / "rec"), "--task", str(tmp_path / "task.toml")])
    assert done.exit_code == 0, done.stdout


def test_a_method_without_augmentation_gets_no_table_of_it(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    values = np.random.default_rng(1).integers(0, 255, (40, 3, 8, 6)).astype(np.uint8)
    arrays: dict[str, Any] = {"eye/t": np.arange(40) / 2, "eye/values": values}
    arrays |= {"label/t": np.array([0.0, 10.0]), "label/values": np.array(["a", "b"])}
    np.savez(tmp_path / "rec" / "a.npz", **arrays)
    task, _ = init(tmp_path, "--method", "disentafl")
    assert task.modalities[0].augment is None


@pytest.mark.parametrize("name", ["qqr", "fedavg"])
def test_the_options_that_say_how_many_steps_a_device_takes_are_ready_to_uncomment(
    folder: Path, name: str
) -> None:
    _, text = init(folder, "--method", name)
    ready = text.replace("# [config]", "[config]").replace("# batch", "batch").replace("# epochs", "epochs")
    task = Task.model_validate(tomllib.loads(ready))
    config = method(name).configure(task)
    assert task.method == name
    assert (config.batch, config.epochs) == (16, 4)
    assert "# batch = 16    # default 128" in text
