"""Recordings of images, texts and sound, played by a real agent's source into its windower."""

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from edge_agent.cli.main import app
from edge_agent.sensors.source_check import check_sources
from edge_agent.sources import SampleBatch
from edge_agent.sources.registry import open_source
from edge_agent.sources.replay import Replay
from edge_agent.sources.task_match import matching_modalities, source_mismatches
from lichen_lab.simulation.processes.fleet_files import toml
from models.data.streams.cutting import cut
from models.data.streams.recording import Recording, Stream, write_npz
from models.data.streams.windows import Windower
from protocol.tasks.task import Modality, Task, Window
from runtime.clock import SystemClock
from tests.support.agent.data import motion
from tests.support.tasks import small_task

TASK = small_task(
    (
        Modality(name="camera", kind="image", channels=1, height=9, width=8, rate_hz=5),
        Modality(name="imu", channels=3, rate_hz=50),
        Modality(name="sound", kind="sound", channels=1, rate_hz=8000),
        Modality(name="words", kind="text", channels=32, rate_hz=1),
    ),
    window=Window(length_s=2.0, stride_s=1.0),
)


def recording() -> Recording:
    rng = np.random.default_rng(0)
    return Recording(
        {
            "camera": Stream(
                np.arange(40) / 5, rng.integers(0, 256, (40, 72)).astype(np.uint8), size=(1, 9, 8)
            ),
            "imu": motion(8, 50, 3),
            "sound": Stream(
                np.arange(64_000) / 8000, rng.integers(-999, 999, (64_000, 1)).astype(np.float32)
            ),
            "words": Stream(np.array([0.5, 3.5]), np.zeros((2, 0), np.float32), texts=("on", "off")),
        }
    )


def source_of(folder: Path, task: Task | None = TASK) -> Replay:
    write_npz(folder / "made.npz", recording())
    names = None if task is None else task.modality_names
    table = {"kind": "replay", "file": "made.npz", "speed": 10_000}
    source = open_source(table, "source[0]", folder, names, SystemClock())
    assert isinstance(source, Replay)
    return source


async def test_a_replay_gives_the_windows_that_the_recording_is_cut_into(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    source.follow(TASK)
    assert source.channels == {"camera": 72, "imu": 3, "sound": 1, "words": 32}
    assert matching_modalities(TASK, [source]) == TASK.modality_names
    assert source.doubts(TASK) == []
    windower, found = Windower(TASK), []
    async for batch in source.samples():
        windower.feed(batch, 0.0)
        while (windows := windower.poll(0.0)) is not None:
            found.append(windows)
    while (windows := windower.flush()) is not None:
        found.append(windows)
    (expected,) = cut(TASK, recording())
    assert expected.present_BM.all(axis=0).tolist() == [True, True, True, False]
    for name, x_BCT in expected.x.items():
        np.testing.assert_array_equal(np.concatenate([w.x[name] for w in found]), x_BCT, err_msg=name)


async def test_before_a_task_is_known_texts_are_held_back_and_frames_are_not(tmp_path: Path) -> None:
    source = source_of(tmp_path, None)
    assert source.channels == {"camera": 72, "imu": 3, "sound": 1, "words": 0}
    names = {b.modality async for b in source.samples() if isinstance(b, SampleBatch)}
    assert names == {"camera", "imu", "sound"}


def test_images_of_another_shape_are_not_collected_and_the_doubts_say_why(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    turned = TASK.modality("camera").model_copy(update={"height": 8, "width": 9})
    task = TASK.model_copy(update={"modalities": (turned, *TASK.modalities[1:])})
    source.follow(task)
    assert "camera" not in matching_modalities(task, [source])
    assert any("images of 9 x 8 pixels" in words for words in source.doubts(task))
    assert source_mismatches(task, [source])


async def test_a_trial_of_sources_says_one_range_of_an_image(tmp_path: Path) -> None:
    (report,) = await check_sources([source_of(tmp_path)], TASK, 5.0, SystemClock())
    camera = report["modalities"]["camera"]
    assert (camera["samples"], camera["rate_hz"]) == (40, 5.0)
    assert (camera["low"], camera["high"]) == ([0.0], [255.0])
    assert report["modalities"]["words"]["samples"] == 2
    assert (report["failed"], report["misfits"], report["doubts"]) == ([], [], [])


def test_an_agent_whose_task_has_texts_starts_from_a_task_file(tmp_path: Path) -> None:
    write_npz(tmp_path / "made.npz", recording())
    task = TASK.model_dump(mode="json", exclude_defaults=True)
    (tmp_path / "task.toml").write_text(toml(task))
    (tmp_path / "agent.toml").write_text(
        f'fleet = "f"\ndevice = "d"\nstate_dir = "{tmp_path}/state"\ncache_dir = "{tmp_path}/cache"\n'
        'task_file = "task.toml"\n[[source]]\nkind = "replay"\nfile = "made.npz"\n'
    )
    checked = CliRunner().invoke(app, ["check", "--config", f"{tmp_path}/agent.toml", "--format", "json"])
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.output)["sources"] == {
        "replay made.npz": {"camera": 72, "imu": 3, "sound": 1, "words": 32}
    }
