"""What a device has collected leaves it as a window set, while the agent runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.cli.main import app
from edge_agent.tasks.task_store import TASK_FILE
from edge_agent.windows.store import WindowStore
from edge_agent.windows.window_sets import windows_of_recording
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.messages import encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from tests.support.agent.data import toy_recording, toy_task
from tests.unit.edge_agent.messaging.test_agent_session import config

TASK = toy_task()
WINDOWS = windows_of_recording(TASK, toy_recording(120))


def export(folder: Path, *words: str):
    done = ["data", "export", "--config", str(config(folder)), "--out", str(folder / "out.npz"), *words]
    return CliRunner().invoke(app, done)


def announced(folder: Path, task: Task) -> None:
    (folder / "state" / TASK_FILE).write_bytes(encode(TaskAnnouncement.of(task)))


@pytest.fixture
def store(tmp_path: Path):
    (tmp_path / "state" / "store").mkdir(parents=True)
    announced(tmp_path, TASK)
    found = WindowStore(tmp_path / "state" / "store", TASK, 50_000_000)
    yield found
    found.close()


def test_windows_of_a_store_that_is_open_are_written_as_they_were_collected(
    tmp_path: Path, store: WindowStore
) -> None:
    store.add(WINDOWS)
    store.commit()
    done = export(tmp_path, "--format", "json")
    assert done.exit_code == 0, done.exception
    labelled = window_set.select(WINDOWS, WINDOWS.y_B >= 0)
    assert json.loads(done.stdout)["windows"] == len(labelled)
    found = window_set.load(tmp_path / "out.npz", TASK)
    for name in TASK.modality_names:
        np.testing.assert_array_equal(found.x[name], labelled.x[name])
    np.testing.assert_array_equal(found.y_B, labelled.y_B)
    assert found.group_B is not None
    assert set(found.group_B.tolist()) == {"d"}
    export(tmp_path, "--unlabelled", "--newest", "5")
    np.testing.assert_array_equal(window_set.load(tmp_path / "out.npz").y_B, WINDOWS.y_B[-5:])
    store.add(WINDOWS)  # nothing of it was locked or changed
    assert store.commit()


def test_what_is_not_there_is_said(tmp_path: Path, store: WindowStore) -> None:
    done = export(tmp_path)
    assert "it holds no windows with a label" in str(done.exception)
    announced(tmp_path, toy_task(labels=("a", "b")))
    assert "stores no windows of task 'toy'" in str(export(tmp_path).exception)
    (tmp_path / "state" / TASK_FILE).unlink()
    done = export(tmp_path)
    assert isinstance(done.exception, Misconfigured)
    assert "no task was announced yet" in str(done.exception)
    assert not (tmp_path / "out.npz").exists()
    assert store.snapshot().total == 0
