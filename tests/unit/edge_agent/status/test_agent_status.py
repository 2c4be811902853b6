"""``lichen agent status`` tells a dead agent from a live one; and no second agent on the same folder."""

import itertools
import json
import os
import sqlite3
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from edge_agent.cli import main
from edge_agent.config.agent import read
from edge_agent.deployment.events import PointerRejected
from edge_agent.deployment.record import InstalledBundle
from edge_agent.status import status_file
from edge_agent.status.model_status import ModelStatus
from edge_agent.status.report import StatusReport
from edge_agent.storage.agent_storage import LOCK_FILE
from edge_agent.windows import store as window_store
from protocol.errors import Misconfigured
from protocol.frames.frame import digest
from runtime.clock import SystemClock
from runtime.storage.folder_lock import FolderLock
from tests.support.services import beside, until
from tests.unit.edge_agent.messaging.test_agent_session import config, make
from tests.unit.edge_agent.windows.test_agent_store import TASK, windows

KEPT = InstalledBundle(task=TASK.name, version=3, digest="a" * 64)


def shown(path, *options):
    return CliRunner().invoke(main.app, ["status", "--config", str(path), *options])


def write(path, **fields):
    settings = read(path)
    for folder in (settings.state_dir, settings.cache_dir):
        folder.mkdir(exist_ok=True)
    words = json.dumps({"pid": os.getpid(), "wall": 1_700_000_000.0, "link": "connected", **fields})
    (settings.cache_dir / status_file.STATUS_FILE).write_text(words)
    return settings


def test_a_live_agent_is_shown_with_0_and_a_dead_one_with_69(tmp_path):
    path = config(tmp_path)
    settings = write(path)
    owner = FolderLock(settings.state_dir / LOCK_FILE, "agent")
    assert shown(path).exit_code == 0
    assert json.loads(shown(path, "--format", "json").stdout)["running"] is True
    owner.close()
    dead = shown(path)
    assert dead.exit_code == 69
    assert "not running since 2023-11-14 22:13:20+00:00" in dead.stdout
    assert "connected" in dead.stdout, "its last state"
    assert json.loads(shown(path, "--format", "json").stdout)["running"] is False


def test_a_live_agent_whose_status_is_not_written_any_more_is_said_to_be_so(tmp_path):
    path = config(tmp_path)
    wall = SystemClock().wall()
    settings = write(path, wall=wall - 70, waits=[{"what": "broker", "why": "it is away"}])
    owner = FolderLock(settings.state_dir / LOCK_FILE, "agent")
    assert "not written" not in shown(path, "--why").stdout, "a minute is as often as an idle one writes it"
    write(path, wall=wall - 600, waits=[{"what": "broker", "why": "it is away"}])
    said = shown(path, "--why").stdout
    found = json.loads(shown(path, "--format", "json").stdout)["waits"]
    owner.close()
    assert "status: the agent runs but its status is not written" in said
    assert "cache_dir has room" in said
    assert [one["what"] for one in found] == ["status", "broker"], "and what it waited for then"


def test_where_the_lock_cannot_be_read_the_process_is_asked(tmp_path, monkeypatch):
    path = config(tmp_path)
    monkeypatch.setattr(status_file, "is_locked", lambda _path: None)
    write(path)
    assert shown(path).exit_code == 0
    write(path, pid=2**30)
    assert shown(path).exit_code == 69


@pytest.mark.parametrize("content", [None, "{half", "[]"])
def test_no_last_words_at_all_is_69(tmp_path, content):
    path = config(tmp_path)
    if content is not None:
        settings = write(path)
        (settings.cache_dir / status_file.STATUS_FILE).write_text(content)
    assert shown(path).exit_code == 69


def test_what_stands_in_brackets_is_printed(tmp_path):
    path = config(tmp_path)
    settings = write(path, inference="pip install 'lichen[infer]'", last="[/]")
    owner = FolderLock(settings.state_dir / LOCK_FILE, "agent")
    assert "'lichen[infer]'" in shown(path).stdout
    owner.close()


async def test_the_file_names_process_and_time_and_is_written_once_more_at_the_end(tmp_path):
    path, now = tmp_path / "cache" / "status.json", {"windows": 1}
    async with beside(status_file.keep(path, lambda: now, SystemClock())):
        await until(path.exists)
        now["windows"] = 2
    found = json.loads(path.read_text())
    assert (found["pid"], found["windows"]) == (os.getpid(), 2)
    assert found["wall"] > 1.7e9


def test_a_second_agent_on_the_same_folder_is_misconfigured(tmp_path):
    first = make(tmp_path)
    with pytest.raises(Misconfigured, match="another agent runs on this state_dir"):
        make(tmp_path)
    first.close()
    make(tmp_path).close()


async def test_a_full_disk_is_in_the_status_until_it_recovers(tmp_path, monkeypatch):
    agent = make(tmp_path)
    await agent.tasks.use(TASK)
    store = agent.tasks.workspace.store
    assert agent.status()["disk"] == "ok"

    def full(*_args):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(window_store, "insert", full)
    store.add(windows([0, 1]))
    with capture_logs() as logs:
        assert not store.commit()
        assert not store.commit()
        words = agent.status()["disk"]
        assert words.startswith("windows cannot be written since 20")
        assert words.endswith(f"{store.path}: the disk of {store.path.parent} is full")
        assert [entry["event"] for entry in logs] == ["windows_not_written"]
        monkeypatch.undo()
        assert store.commit()
    assert agent.status()["disk"] == "ok"
    assert logs[-1]["event"] == "windows_written_again"
    agent.close()


async def test_what_was_written_to_the_disk_is_no_reason_to_write_again(tmp_path, monkeypatch):
    """Else the status of an agent at rest would wear the card by itself."""
    path, counted = tmp_path / "status.json", itertools.count()
    monkeypatch.setattr(status_file, "_EVERY_S", 0.005)
    async with beside(
        status_file.keep(path, lambda: {"windows": 1, "disk_writes": {"bytes": next(counted)}}, SystemClock())
    ):
        await until(path.exists)
        first = path.read_text()
        at = next(counted)
        await until(lambda: next(counted) > at + 20)
        assert path.read_text() == first


def test_disk_writes_are_in_the_status_and_grow_with_a_commit(tmp_path):
    agent = make(tmp_path)
    before = agent.status()["disk_writes"]
    agent.storage.spool.put(task="t", round_=1, digest=digest(b"x"), payload=b"x", carry=None)
    after = agent.status()["disk_writes"]
    assert after["commits"] == before["commits"] + 1
    assert after["syncs"] == before["syncs"] + 1
    assert set(after) == {"commits", "syncs", "bytes"}
    agent.close()


async def test_after_an_orderly_stop_nothing_is_said_to_run(tmp_path):
    """What was in the way of it stays: it explains the last state."""
    agent = make(tmp_path)
    file = agent.settings.cache_dir / status_file.STATUS_FILE
    for because, last in (("", "stopped with the agent"), ("no model yet", "no model yet")):
        agent.inference.disabled_reason = because
        file.unlink(missing_ok=True)
        async with beside(agent.services()["status"]):
            await until(file.exists)
            assert json.loads(file.read_text())["inference"] == (because or "running")
        assert json.loads(file.read_text())["inference"] == last
    agent.close()


@pytest.mark.parametrize(("up", "last"), [(True, "stopped with the agent"), (False, "connection refused")])
def test_a_link_that_was_up_has_stopped_and_one_that_was_down_says_why(tmp_path, up, last):
    agent = make(tmp_path)
    counters, why = agent.link.counters, "connected" if up else last
    link = SimpleNamespace(connected=up, why=why, counters=counters, since=0.0, until=None)
    report = StatusReport("d", link, [agent.models])
    assert report.status()["link"] == why
    assert report.last_status()["link"] == last
    agent.close()


def test_an_observing_device_without_a_model_says_so_and_why(tmp_path):
    """None announced, refused, switched off, no ONNX Runtime: each with what ends it."""
    agent = make(tmp_path, roles=["observe"])
    models, said = agent.models, {}

    def why(of: str, **inference) -> None:
        for key, value in inference.items():
            setattr(agent.inference, key, value)
        (wait,) = models.waits()
        said[of] = f"{wait.why} / {wait.then}"

    why("none")
    agent.deployment.executor.apply(PointerRejected(KEPT, "it wants the modality eeg, which is not here"))
    why("refused")
    why(
        "missing",
        available=False,
        disabled_reason="onnxruntime is not installed: pip install 'lichen[infer]'",
    )
    off = agent.settings.infer.model_copy(update={"enabled": False})  # the default is everybody's
    settings = agent.settings.model_copy(update={"infer": off})
    models = ModelStatus(settings, agent.tasks, agent.inference, agent.deployment)
    why("off", disabled_reason="infer.enabled is false")
    again = "until a coordinator announces one that runs here"
    assert said == {
        "none": f"no model runs here: no model was announced / {again}",
        "refused": "no model runs here: version 3 was refused: it wants the modality eeg, which is not here "
        f"/ {again}",
        "missing": "no model runs here: onnxruntime is not installed: pip install "
        "'lichen[infer]' / until that is mended, and the agent is restarted",
        "off": "no model runs here: infer.enabled is false / until infer.enabled is true, or observe is left "
        "out of roles, and the agent is restarted",
    }
    agent.close()
