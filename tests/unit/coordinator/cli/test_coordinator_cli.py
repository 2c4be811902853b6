"""Configuration errors name file and key; check and history speak JSON and tables."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.config.coordinator import load_settings
from coordinator.recovery.folder_owner import own_task
from coordinator.recovery.state_folder import open_storage
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from coordinator.task import load_task
from lichen import cli
from protocol.errors import Misconfigured
from protocol.topics import Kind
from runtime import exit_codes
from runtime.clock import SystemClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task
from tests.support.tasks import stream, task_toml

ROOT = Path(__file__).resolve().parents[4]
CONFIG = 'fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n'
TASK = task_toml(name="tiny", method="qqr", streams={"acc": stream(3, 10)})


def write(folder, config: str = CONFIG, task: str = TASK):
    (folder / "task.toml").write_text(task)
    (folder / "coordinator.toml").write_text(config)
    return folder / "coordinator.toml"


def test_paths_are_relative_to_the_config_file(tmp_path) -> None:
    settings = load_settings(write(tmp_path))
    assert settings.state_dir == tmp_path / "coordinator"
    task, spec = load_task(settings)
    assert task.name == "tiny"
    assert (task.uplink, task.downlink) == (spec.uplink, spec.downlink), "the file has neither table"


@pytest.mark.parametrize(
    ("config", "task", "words"),
    [
        (CONFIG + "offer_evry_s = 3\n", TASK, ["coordinator.toml", "offer_evry_s", "offer_every_s"]),
        (CONFIG + "[worker]\ntimeout_s = 0\n", TASK, ["coordinator.toml", "worker.timeout_s"]),
        (CONFIG + '[evaluation]\ndata = "none.npz"\n', TASK, ["evaluation.data", "none.npz"]),
        (CONFIG, TASK.replace("rate_hz = 10", 'rate_hz = "fast"'), ["task.toml", "rate_hz"]),
        (CONFIG, TASK.replace('"qqr"', '"qrr"'), ["task.toml", "qrr", "qqr"]),
        (CONFIG, TASK + "[config]\nprototype_bitz = 4\n", ["task.toml", "prototype_bitz"]),
        (
            CONFIG,
            TASK + "[rounds]\ndevices_per_round = 1\nmin_devices = 2\n",
            ["task.toml", "rounds.devices_per_round", "no round would ever open"],
        ),
    ],
)
def test_a_wrong_key_is_named_with_its_file(tmp_path, config: str, task: str, words: list[str]) -> None:
    file = write(tmp_path, config, task)
    with pytest.raises(Misconfigured) as found:
        load_task(load_settings(file))
    for word in words:
        assert word in str(found.value)


BAD_WINDOWS = {
    "shape": ({"x/acc": np.zeros((2, 3, 7))}, "x/acc has shape (2, 3, 7)"),
    "modality": ({"x/mic": np.zeros((2, 3, 20))}, "modalities acc, mic"),
    "words": ({"y": np.array(["a", "b"])}, "'y' holds <U1, not integers"),
    "scalar": ({"x/acc": np.float32(1)}, "the same number of windows"),
    "class": ({"y": np.array([0, 2])}, "y goes from 0 to 2"),
    "unlabelled": ({"y": np.array([-1, -1])}, "none of its 2 windows is labelled"),
}


@pytest.mark.parametrize("case", BAD_WINDOWS)
def test_evaluation_windows_that_fit_no_task_are_named_at_the_start(tmp_path, case: str) -> None:
    changes, words = BAD_WINDOWS[case]
    good = {"x/acc": np.zeros((2, 3, 26)), "present": np.ones((2, 1)), "quality": np.ones((2, 1))}
    np.savez(tmp_path / "w.npz", **(good | {"y": np.array([0, 1])} | changes))
    file = write(tmp_path, CONFIG + '[evaluation]\ndata = "w.npz"\n')
    with pytest.raises(Misconfigured, match=r"evaluation\.data: .*w\.npz") as found:
        load_task(load_settings(file))
    assert words in str(found.value)


async def test_history_shows_what_a_peer_wrote_and_does_not_obey_it(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1)) as made:
        await made.online("a")
        topic = "lichen/v1/test/d/a/up/[/nonsense]"
        await made.raw(topic, b"")
    done = CliRunner().invoke(app, ["history", "-c", str(write(tmp_path))], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.exception
    assert "[/nonsense]" in done.stdout.replace("\n", "")


def test_check_says_what_was_understood(tmp_path) -> None:
    done = CliRunner().invoke(app, ["check", "--config", str(write(tmp_path)), "--format", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["method"] == "qqr"
    assert "sound" in CliRunner().invoke(app, ["check", "-c", str(write(tmp_path))]).stdout


async def test_history_shows_rounds_refusals_and_confusion(tmp_path) -> None:
    (tmp_path / "w.npz").touch()
    async with bench(tmp_path, tiny_task(count=1), evaluation={"data": tmp_path / "w.npz"}) as made:
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, b"\xd9\xd9\xf7nonsense")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.phase("done")
    file = str(write(tmp_path))
    found = json.loads(CliRunner().invoke(app, ["history", "-c", file, "--format", "json"]).stdout)
    assert found["confusion"] == {"version": 1, "labels": ["a", "b"], "matrix": [[1, 0], [0, 1]]}
    update = found["rounds"][0]["updates"][0]
    assert (update["missing"], update["quality"]) == ({"acc": 0.25, "gyro": 1.0}, {"acc": 0.5})
    assert found["devices"][0]["status"] == "online"
    table = CliRunner().invoke(app, ["history", "-c", file]).stdout
    assert "malformed" in table
    assert "accuracy" in table


def test_history_without_state_says_where_it_looked(tmp_path) -> None:
    done = CliRunner().invoke(app, ["history", "-c", str(write(tmp_path))])
    assert done.exit_code == exit_codes.UNAVAILABLE
    assert "coordinator.sqlite3 is not there; has this coordinator ever run?" in done.output
    said = CliRunner().invoke(app, ["history", "-c", str(write(tmp_path)), "--format", "json"]).output
    assert "is not there" in json.loads(said.splitlines()[0])["error"]


async def test_check_refuses_a_state_folder_of_another_fleet_or_task_as_serve_does(tmp_path) -> None:
    file = write(tmp_path)
    settings = load_settings(file)
    task = load_task(settings)[0]
    with Database(prepared(settings.state_dir)) as store:
        own_task(store, task, settings)
    assert CliRunner().invoke(app, ["check", "-c", str(file)]).exit_code == 0
    other = CONFIG.replace('"test"', '"other"')
    for config, text, words in (
        (other, TASK, ["fleet", "'other'", "'test'", "coordinator.sqlite3"]),
        (CONFIG, TASK.replace('"b"', '"c"'), ["task.toml", "labels differs"]),
    ):
        done = CliRunner().invoke(app, ["check", "-c", str(write(tmp_path, config, text))])
        assert isinstance(done.exception, Misconfigured)
        settings = load_settings(file)
        with (
            pytest.raises(Misconfigured) as found,
            open_storage(settings, load_task(settings)[0], SystemClock(), keeps_messages=False),
        ):
            pass
        assert str(found.value) == str(done.exception)
        assert all(word in str(found.value) for word in words)


def prepared(folder: Path) -> Path:
    folder.mkdir()
    return folder / DATABASE


def test_the_example_is_sound_and_the_docs_name_every_key() -> None:
    settings = load_settings(ROOT / "examples/coordinator.toml")
    assert settings.task == ROOT / "examples/task.toml"
    page = (ROOT / "docs/coordinator-settings.md").read_text()
    for name, value in settings:
        inner = (
            [f"{name}.{key}" for key in type(value).model_fields] if isinstance(value, BaseModel) else [name]
        )
        for key in [f"{name}.*"] if name in ("mqtt", "log") else inner:
            assert f"`{key}`" in page, f"docs/coordinator-settings.md does not name {key}"


@pytest.mark.parametrize("command", ["status", "history"])
def test_a_command_that_reads_a_damaged_database_names_it_and_says_what_mends_it(
    tmp_path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tmp_path)
    folder = load_settings(config).state_dir
    folder.mkdir()
    (folder / DATABASE).write_bytes(b"this is not a database" * 1000)
    with pytest.raises(SystemExit) as left:
        cli.main(["coordinator", command, "--config", str(config)])
    err = capsys.readouterr().err
    assert left.value.code == exit_codes.CONFIG
    assert DATABASE in err
    assert "the start of the coordinator rebuilds it" in err
