"""What is doubtful is said at ``check`` and at the start; what would fail later is found now."""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from edge_agent.app import load
from edge_agent.cli import main
from edge_agent.messaging.state_reporter import will
from edge_agent.tasks import roles
from models.data.streams.recording import Recording, write_npz
from protocol.errors import Misconfigured
from protocol.messages import State, decode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Modality
from tests.support.agent.data import motion, toy_task
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, config, make, write_task


@pytest.fixture
def no_torch(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    roles._has_torch.cache_clear()
    yield
    roles._has_torch.cache_clear()


def checked(path):
    result = CliRunner().invoke(main.app, ["check", "--config", str(path), "--format", "json"])
    return result.exit_code, json.loads(result.stdout)


async def warned(agent) -> list[str]:
    with capture_logs() as logs:
        await agent.start()
    return [entry["why"] for entry in logs if entry["log_level"] == "warning"]


@pytest.mark.usefixtures("no_torch")
async def test_without_torch_the_role_train_is_not_announced_and_this_is_said(tmp_path):
    status, found = checked(config(tmp_path))
    assert (status, found["roles"]) == (0, ["observe"])
    assert "pip install 'lichen[train]'" in found["warnings"][0]
    printed = CliRunner().invoke(main.app, ["check", "--config", str(tmp_path / "agent.toml")]).stdout
    assert "[train]" in printed.replace("\n", "")
    agent = make(tmp_path)
    assert agent.reporter.state().roles == ("observe",)
    assert decode(will(agent.settings).payload, State).roles == ("observe",)
    assert len([words for words in await warned(agent) if "lichen[train]" in words]) == 1
    agent.close()


def test_with_torch_both_roles_are_announced_and_nothing_is_said(tmp_path):
    assert checked(config(tmp_path))[1]["warnings"] == []
    agent = make(tmp_path)
    assert agent.reporter.state().roles == ("observe", "train")
    agent.close()


def odd(folder: Path) -> None:
    """Labels that no task of ours has, and milliseconds as times."""
    stream = motion(30, 50, 3)
    slow = type(stream)(stream.t * 1000, stream.values)
    labels = np.array([0, 7, -1], np.int64)
    write_npz(
        folder / "toy.npz",
        Recording({"acc": slow, "gyr": motion(30, 25, 2)}, np.array([0.0, 9.0, 20.0]), labels),
    )


async def test_labels_and_rates_that_hardly_fit_are_said_and_taken(tmp_path):
    write_task(tmp_path)
    path = config(tmp_path, task_file="task.toml")
    odd(tmp_path)
    status, found = checked(path)
    assert status == 0
    labels, rate = found["warnings"]
    assert "label 7: no class of task 'toy', which has 0 to 2" in labels
    assert "'acc' was recorded at 0.05 Hz, the task's rate_hz is 50" in rate
    _, agent = load(path)
    assert set(found["warnings"]) <= set(await warned(agent))
    agent.close()


async def test_a_task_that_is_announced_is_compared_too(tmp_path):
    agent = make(tmp_path)
    task = toy_task(modalities=(Modality(name="acc", channels=3, rate_hz=100),))
    with capture_logs() as logs:
        await agent.work.act_on(TaskAnnouncement.of(task))
    assert any("recorded at 50 Hz, the task's rate_hz is 100" in entry.get("why", "") for entry in logs)
    agent.close()


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("folder", "is a folder"),
        ("plain/x/out.jsonl", "plain is not a folder"),
        ("closed/a/out", "not writable"),
    ],
)
def test_predictions_that_could_not_be_written_are_found_at_the_start(tmp_path, monkeypatch, output, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir()
    (tmp_path / "plain").write_text("")
    access = os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p).name != "closed" and access(p, mode))
    path = config(tmp_path, BASIC + f'[infer]\noutput = "{output}"\n')
    with pytest.raises(Misconfigured, match=f"infer.output: .*{words}"):
        load(path)
    assert checked(path)[0] == 78


def test_predictions_in_a_folder_that_is_not_there_yet_are_fine(tmp_path):
    assert checked(config(tmp_path, BASIC + '[infer]\noutput = "new/er/out.jsonl"\n'))[0] == 0
    assert not (tmp_path / "new").exists()
