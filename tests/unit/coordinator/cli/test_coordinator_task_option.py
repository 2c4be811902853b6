"""``--task``: commands of one task, and what the others of the fleet show of it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from lichen import cli
from runtime import exit_codes
from tests.support.services import until
from tests.support.several_tasks import TASK, Fleet, online

COMMANDS = (
    "coordinator status",
    "coordinator history",
    "coordinator check",
    "coordinator lead",
    "coordinator ingest",
    "coordinator move-blobs folder",
    "coordinator restore .",
    "round hold",
    "round resume",
    "round end",
    "round explain",
    "rollout create",
    "rollout status",
    "rollout pause",
    "rollout resume",
    "rollout abort",
    "device ls",
    "device approve barn-1",
    "device release barn-1",
    "device forget barn-1",
    "device ask-state barn-1",
    "device logs barn-1",
    "audit list",
    "export --out bundle.zip",
    "export mlflow",
)


def written(folder: Path, *names: str) -> Path:
    for name in ("task", *names):
        (folder / f"{name}.toml").write_text(TASK)
    tables = "".join(f'[[tasks]]\nname = "{name}"\ntask = "{name}.toml"\n' for name in names)
    config = folder / "coordinator.toml"
    config.write_text(f'fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n{tables}')
    return config


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    return int(left.value.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_name_is_refused_with_those_that_are_known(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, "sound", "door")

    code = run(*command.split(), "--config", str(config), "--task", "sounds")

    assert code == exit_codes.CONFIG
    err = " ".join(capsys.readouterr().err.split())
    assert "'sounds' is not in coordinator.toml; its [[tasks]] are sound, door, and the main task" in err
    assert not (tmp_path / "coordinator").exists()


async def test_status_shows_a_line_for_each_further_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound", "door")
    config = written(tmp_path, "sound", "door")
    (tmp_path / "door.toml").write_text("name = 1")
    async with fleet.run():
        await fleet.until(sound="running", door="failed")
        sound = fleet.coordinator("sound")
        await online(sound, "barn-1")
        await until(lambda: sound.storage.store.get_meta("why"))

        assert run("coordinator", "status", "--config", str(config)) == 0
        told = capsys.readouterr().out
        assert "task sound: running; waiting_for_devices, round 1 of 2, version 0: round 1 attempt 1" in told
        assert "task door: failed; tried again in " in told
        assert str(tmp_path / "door.toml") in told

        assert run("coordinator", "status", "--config", str(config), "--task", "sound") == 0
        told = capsys.readouterr().out
        assert "fleet: test~sound" in told
        assert "devices online: 1" in told

    assert run("coordinator", "status", "--config", str(config), "--format", "json") == exit_codes.UNAVAILABLE
    found = json.loads(capsys.readouterr().out)["tasks"]
    assert [(one["name"], one["state"]) for one in found] == [
        ("sound", "not running"),
        ("door", "not running"),
    ]
    assert found[0]["version"] == 0


async def test_orders_and_devices_are_of_one_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound")
    config = str(written(tmp_path, "sound"))
    async with fleet.run():
        await fleet.until(sound="running")
        await online(fleet.coordinator("sound"), "barn-1")
    assert run("round", "hold", "--why", "a test", "--config", config, "--task", "sound") == 0
    assert run("device", "ls", "--config", config, "--task", "sound") == 0
    assert "barn-1" in capsys.readouterr().out

    assert run("round", "end", "--config", config) == 0
    assert run("device", "ls", "--config", config) == 0
    assert "barn-1" not in capsys.readouterr().out
    for words, expected in (
        ((), {("rounds.hold", "a test", "sound"), ("rounds.end", "", None)}),
        (("--task", "sound"), {("rounds.hold", "a test", "sound")}),
    ):
        assert run("audit", "list", "--config", config, *words, "--format", "json") == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert {(one["action"], one["target"], one["task"]) for one in rows} == expected
    assert run("audit", "verify", "--config", config) == 0


def test_check_names_the_task_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(written(tmp_path, "sound", "door"))
    assert run("coordinator", "check", "--config", config) == 0
    assert "sound, door" in capsys.readouterr().out

    (tmp_path / "door.toml").write_text(TASK.replace("qqr", "qrr"))
    assert run("coordinator", "check", "--config", config) == exit_codes.CONFIG
    err = capsys.readouterr().err
    assert "task 'door'" in err
    assert "qrr" in err


async def test_a_backup_has_the_state_folder_of_each_task(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.write("sound", "door")
    config = str(written(tmp_path, "sound"))  # door is no longer in the file, and its state is not lost
    copy = tmp_path / "copy"
    async with fleet.run():
        await fleet.until(sound="running", door="running")
        assert run("coordinator", "backup", str(copy), "--config", config) == 0

    for folder in (copy, copy / "tasks/sound", copy / "tasks/door"):
        with closing(sqlite3.connect(folder / "coordinator.sqlite3")) as tables:
            assert tables.execute("SELECT count(*) FROM events").fetchone()[0] > 0
    assert not list(copy.rglob("*-wal"))
