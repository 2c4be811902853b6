"""Data that would be useless without a word: every command that reads recordings says so."""

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from edge_agent.app import load as load_agent
from edge_agent.cli.main import app as agent_app
from lichen.cli import main
from lichen.commands.data import app
from models.data.streams.recording import Recording, Stream, read, write_npz
from tests.support.agent.data import motion
from tests.support.tasks import stream, task_toml

TASK = task_toml(
    ("still", "walking", "running"),
    "steps",
    streams={"acc": stream(3, 25, unit="g"), "gyro": stream(3, 25, low=-20, high=20)},
    window={"length_s": 2.0, "stride_s": 1.0},
    rounds={"count": 1, "min_windows": 1},
)
LABELS = np.array([0, 1, 2, 0])


def task(folder: Path, more: str = "") -> Path:
    (folder / "task.toml").write_text(TASK + more)
    return folder / "task.toml"


def at_rest(seed: int = 1) -> Stream:
    """An accelerometer in g."""
    moving = motion(60, 25, 3, seed)
    return Stream(moving.t, 0.1 * moving.values + np.array([0, 0, 1], np.float32))


def sound(**changes) -> Recording:
    """A minute in which nothing is odd."""
    streams = {"acc": at_rest(), "gyro": motion(60, 25, 3, 2), **changes.pop("streams", {})}
    return Recording(
        {n: s for n, s in streams.items() if s is not None}, np.arange(0, 60, 15.0), LABELS, **changes
    )


def scaled(stream: Stream, *, t: float = 1.0, values: float = 1.0) -> Stream:
    return Stream(stream.t * t, np.asarray(stream.values * values, np.float32))


def check(folder: Path, *recordings: Recording, more: str = "") -> tuple[int, dict]:
    (folder / "rec").mkdir(exist_ok=True)
    for number, recording in enumerate(recordings):
        write_npz(folder / "rec" / f"d{number}.npz", recording)
    words = ["check", str(folder / "rec"), "--task", str(task(folder, more)), "--format", "json"]
    done = CliRunner().invoke(app, words)
    return done.exit_code, json.loads(done.stdout)


def kinds(told: dict, severity: str = "error") -> list[str]:
    return [one["kind"] for file in told["files"] for one in file["findings"] if one["severity"] == severity]


def test_sound_data_is_counted_and_nothing_is_said(tmp_path):
    code, told = check(tmp_path, sound(), sound())
    assert (code, told["errors"], told["warnings"], told["sound"]) == (0, 0, 0, True)
    assert told["files"][0]["windows"] == 59
    assert told["files"][0]["by_class"] == {"still": 28, "walking": 14, "running": 14}
    assert told["files"][0]["share_without_window"] == 0.0


def broken(name: str) -> Recording:
    acc, gyro = at_rest(), motion(60, 25, 3, 2)
    holes = acc.values.copy()
    holes[100:400] = np.nan
    dead = gyro.values.copy()
    dead[:, 1] = 3.0
    order = np.random.default_rng(0).permutation(len(acc.t))
    far = np.concatenate([gyro.t[:500], gyro.t[500:] + 60])
    return {
        "misspelt": lambda: sound(streams={"gyro": None, "gyroo": gyro}),
        "other case": lambda: sound(streams={"acc": None, "ACC": acc}),
        "shifted": lambda: Recording(sound().streams, sound().label_t, LABELS + 1),
        "foreign class": lambda: Recording(sound().streams, sound().label_t, LABELS * 7),
        "milliseconds": lambda: sound(streams={"acc": scaled(acc, t=1000.0)}),
        "another rate": lambda: sound(streams={"acc": scaled(acc, t=2.0)}),
        "nan": lambda: sound(streams={"acc": Stream(acc.t, holes)}),
        "all nan": lambda: sound(streams={"acc": scaled(acc, values=np.nan)}),
        "dead": lambda: sound(streams={"gyro": Stream(gyro.t, dead)}),
        "m/s2": lambda: sound(streams={"acc": scaled(acc, values=9.81)}),
        "milli": lambda: sound(streams={"acc": scaled(acc, values=1000.0)}),
        "beyond": lambda: sound(streams={"gyro": scaled(gyro, values=1000.0)}),
        "disorder": lambda: sound(streams={"acc": Stream(acc.t[order], acc.values[order])}),
        "twice": lambda: sound(streams={"acc": Stream(np.repeat(acc.t[::2], 2), acc.values)}),
        "gap": lambda: sound(streams={"gyro": Stream(far, gyro.values)}),
        "channels": lambda: sound(streams={"acc": Stream(acc.t, acc.values[:, :2].copy())}),
        "no gyro": lambda: sound(streams={"gyro": None}),
        "named": lambda: sound(names={"label": ("still", "wlaking", "running")}),
        "short activities": lambda: Recording(
            sound().streams, np.arange(0, 60, 1.5), np.arange(40, dtype=np.int64) % 3
        ),
    }[name]()


@pytest.mark.parametrize(
    ("name", "severity", "kind", "words"),
    [
        ("misspelt", "error", "unknown-modality", "'gyroo' is not in task 'steps'.*no 'gyro': is it that"),
        ("other case", "error", "unknown-modality", "'ACC' is not in task.*no 'acc': is it that"),
        ("shifted", "error", "shifted-labels", "from 1 to 3 and the task counts from 0: subtract 1"),
        ("foreign class", "error", "unknown-class", "label 7, 14: no class of task 'steps'"),
        ("milliseconds", "error", "time-unit", "'acc' was recorded at 0.025 Hz.*milliseconds"),
        ("another rate", "warning", "rate", "'acc' was recorded at 12.5 Hz, the task's rate_hz is 25"),
        ("nan", "warning", "not-a-number", r"300 of 1500 samples \(20.0%\) hold NaN"),
        ("all nan", "error", "not-a-number", "1500 of 1500 samples"),
        ("dead", "warning", "constant", r"'gyro': channel 1 \(3\) never changes"),
        ("m/s2", "error", "unit", r"'acc': it reads 9.8\d? times gravity, off by 9.81 times"),
        ("milli", "error", "unit", "'acc': it reads 1.01e\\+03 times gravity, off by a thousand times"),
        ("beyond", "error", "bounds", "'gyro': .*beyond -20 to 20 .*a thousand times smaller"),
        ("disorder", "warning", "disorder", "'acc': .*times are before the previous one"),
        ("twice", "warning", "same-times", "'acc': 750 of 1500 samples have the time of the one before"),
        ("gap", "warning", "gaps", "'gyro': 1 gaps over 0.2 s .*together 60.04 of 120"),
        ("channels", "error", "channels", "'acc' has 2 channels, the task says 3"),
        ("no gyro", "warning", "missing-modality", "'gyro' of task 'steps' is not in it"),
        ("named", "error", "unknown-class", "'wlaking' is no class.*did you mean 'walking'"),
        (
            "short activities",
            "warning",
            "mixed-labels",
            "59 of 59 windows hold more than one.*majority",
        ),
    ],
)
def test_what_is_odd_is_found(tmp_path, name, severity, kind, words):
    code, told = check(tmp_path, broken(name), sound())
    (found, *_) = [one for one in told["files"][0]["findings"] if one["kind"] == kind]
    assert found["severity"] == severity
    assert re.search(words, found["words"]), found["words"]
    assert code == (65 if severity == "error" else 0)
    assert kinds({"files": told["files"][1:]}) == []


def test_a_task_with_another_rule_says_nothing_of_short_activities(tmp_path):
    task_ = TASK.replace("[window]", '[window]\nlabel_rule = "majority"')
    (tmp_path / "rec").mkdir()
    write_npz(tmp_path / "rec" / "d.npz", broken("short activities"))
    (tmp_path / "task.toml").write_text(task_)
    words = ["check", str(tmp_path / "rec"), "--task", str(tmp_path / "task.toml")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "more than one label" not in done.stdout


def test_files_are_compared_with_each_other(tmp_path):
    gyro = motion(60, 25, 3, 2)
    small = sound(streams={"gyro": scaled(gyro, values=1 / 1000)})
    code, told = check(tmp_path, small, sound(), sound())
    assert code == 65
    (found,) = told["across"]
    assert (
        "d0.npz: modality 'gyro' moves 0.001 times as much as in the other files: off by a thousand"
        in found["words"]
    )
    none = Recording({"acc": at_rest()}, np.zeros(1), np.zeros(1, np.int64))
    _, told = check(tmp_path, none, none, none)
    assert {"class 'running': no window in all files together", "modality 'gyro' is in no file"} <= {
        one["words"] for one in told["across"]
    }


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "bad.csv").write_text("t,acc.x\n0,one\n")
    code, told = check(tmp_path, sound())
    assert (code, kinds(told)) == (65, ["unreadable"])
    assert "line 2, column 'acc.x': 'one' is not a number" in told["files"][0]["findings"][0]["words"]
    assert told["files"][1]["windows"] == 59


def test_recordings_without_a_label_are_warned_of_once(tmp_path):
    code, told = check(tmp_path, Recording(sound().streams), Recording(sound().streams))
    assert code == 0
    (found,) = told["across"]
    assert (found["kind"], found["severity"]) == ("no-label", "warning")


def test_a_column_of_words_without_a_place_is_told_what_columns_there_are(tmp_path):
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "bad.csv").write_text("t,acc.x,activity\n0,1,sitting\n")
    _, told = check(tmp_path, sound())
    words = told["files"][0]["findings"][0]["words"]
    assert "'sitting' is not a number; a column is t, label, target.<name> or <modality>.<channel>" in words


def test_a_folder_without_files_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["data", "check", str(tmp_path), "--task", str(task(tmp_path))])
    assert left.value.code == 78
    assert "it has no file of .npz, .csv, .parquet" in capsys.readouterr().err


def test_classes_by_name_in_a_table_are_the_tasks(tmp_path):
    names = ("running", "still", "walking")  # not in the task's order
    words = [names[k] for k in np.repeat([1, 2, 0], 500)]
    rows = [f"{i / 25:.2f},0,{i % 7},1,{word}" for i, word in enumerate(words)]
    (tmp_path / "d.csv").write_text("t,acc.x,acc.y,acc.z,label\n" + "\n".join(rows))
    done = CliRunner().invoke(
        app, ["check", str(tmp_path / "d.csv"), "--task", str(task(tmp_path)), "--format", "json"]
    )
    (file,) = json.loads(done.stdout)["files"]
    assert file["by_class"] == {"still": 19, "walking": 19, "running": 19}
    write_npz(tmp_path / "d.npz", read(tmp_path / "d.csv"))
    assert read(tmp_path / "d.npz").names == {"label": ("still", "walking", "running")}


def test_windows_are_cut_with_a_word_about_what_is_odd(tmp_path):
    write_npz(tmp_path / "d.npz", broken("misspelt"))
    words = [
        "windows",
        str(tmp_path / "d.npz"),
        "--task",
        str(task(tmp_path)),
        "--out",
        str(tmp_path / "o.npz"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert f"error: {tmp_path / 'd.npz'}: modality 'gyroo' is not in task 'steps'" in done.stderr


def config(folder: Path) -> Path:
    file = folder / "agent.toml"
    file.write_text(
        f'fleet = "f1"\ndevice = "d1"\nstate_dir = "{folder}/state"\ncache_dir = "{folder}/cache"\n'
        'task_file = "task.toml"\n[[source]]\nkind = "replay"\nfile = "d.npz"\n'
    )
    return file


def test_an_agent_says_at_check_what_is_odd(tmp_path):
    task(tmp_path)
    write_npz(tmp_path / "d.npz", broken("misspelt"))
    done = CliRunner().invoke(agent_app, ["check", "--config", str(config(tmp_path)), "--format", "json"])
    assert done.exit_code == 0, done.output
    (words,) = json.loads(done.stdout)["warnings"]
    assert "modality 'gyroo' is not in task 'steps'" in words


def test_a_running_agent_logs_it_and_keeps_it_in_its_status(tmp_path):
    task(tmp_path)
    write_npz(tmp_path / "d.npz", broken("shifted"))

    async def run() -> tuple[list[str], list[str]]:
        _, agent = load_agent(config(tmp_path))
        with capture_logs() as logs:
            await agent.start()
        told = agent.status()["data_warnings"]
        agent.close()
        return [str(entry.get("why")) for entry in logs], told

    logged, told = asyncio.run(run())
    (words,) = told
    assert "subtract 1" in words
    assert words in logged
