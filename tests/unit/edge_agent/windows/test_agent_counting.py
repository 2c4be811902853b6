"""A device that learns nothing keeps no windows, and tells of them as before."""

import asyncio

import numpy as np
import pytest

from edge_agent.agent import Agent
from edge_agent.app import load
from edge_agent.config.agent import read
from edge_agent.windows.counting_store import COUNTED, CountingStore
from edge_agent.windows.store import WindowStore
from edge_agent.windows.window_sets import windows_of_recording
from models.data import window_set
from protocol.errors import Misconfigured, Transient
from tests.support.agent.data import toy_recording, toy_task
from tests.support.services import until
from tests.unit.edge_agent.messaging.test_agent_session import config, write_task

FAST = 'fleet = "f"\ndevice = "d"\n[[source]]\nkind = "replay"\nfile = "toy.npz"\nspeed = 1000.0\n'


async def collected(agent: Agent, windows: int) -> None:
    """Until so many windows were cut from the replay."""
    await agent.start()
    work = agent.collector.workspace
    assert work is not None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(agent.collector.run())]
        tasks += [group.create_task(agent.collector.run_source(source)) for source in agent.sources]
        await until(lambda: work.store.snapshot().total >= windows, 20)
        for task in tasks:
            task.cancel()


def agent_of(folder, roles: list[str], more: str = "") -> Agent:
    write_task(folder)
    (folder / "state").mkdir()
    _, agent = load(config(folder, FAST + more, roles=roles, task_file="task.toml"))
    return agent


async def test_an_observer_writes_no_window_and_says_what_its_sensors_are_like(tmp_path):
    agent = agent_of(tmp_path, ["observe"])
    await collected(agent, 8)
    work = agent.collector.workspace
    assert work is not None
    told, standing = work.status(), work.readiness()
    agent.close()
    assert not [*(tmp_path / "state").rglob("windows-*")]
    assert told["store"].startswith("this device does not learn (roles)")
    assert (told["store_bytes"], told["disk"]) == (0, "ok")
    assert sum(standing.modalities["acc"].windows) > 0
    assert standing.modalities["acc"].missing == 0


@pytest.mark.parametrize(
    ("roles", "more"), [(["observe", "train"], ""), (["observe"], "[store]\nenabled = true\n")]
)
async def test_a_device_that_learns_or_is_told_to_keeps_its_windows(tmp_path, roles, more):
    agent = agent_of(tmp_path, roles, more)
    await collected(agent, 8)
    work = agent.collector.workspace
    assert work is not None
    assert work.status()["store"] == "on disk"
    agent.close()
    (file,) = (tmp_path / "state" / "store").glob("windows-*.sqlite3")
    assert file.stat().st_size > 8 * 128 * 3 * 4


def test_a_learner_without_a_store_is_refused(tmp_path):
    with pytest.raises(Misconfigured, match=r"store\.enabled is false: the role 'train' learns from stored"):
        read(config(tmp_path, FAST + "[store]\nenabled = false\n"))


def test_counts_are_those_of_a_store_of_the_newest_windows(tmp_path):
    task, windows = toy_task(), windows_of_recording(toy_task(), toy_recording(120))
    kept, counted = (
        WindowStore(tmp_path, task, 10_000_000),
        CountingStore(tmp_path / "none", task, "it is off"),
    )
    for store in (kept, counted):
        store.add(windows)
    one, other = kept.snapshot(), counted.snapshot()
    assert (one.total, one.labelled, one.counts, one.missing) == (
        other.total,
        other.labelled,
        other.counts,
        other.missing,
    )
    assert other.bytes == 0
    many = window_set.select(windows, np.arange(COUNTED + 10) % len(windows))
    counted.add(many)
    assert counted.snapshot().total == COUNTED
    with pytest.raises(Transient, match="this device stores no windows: it is off"):
        counted.recent(5)
    kept.close()


def test_windows_of_before_are_left_and_named(tmp_path):
    folder = tmp_path / "state" / "store"
    folder.mkdir(parents=True)
    (folder / "windows-abc.sqlite3").touch()
    write_task(tmp_path)
    _, agent = load(config(tmp_path, FAST, roles=["observe"], task_file="task.toml"))
    asyncio.run(agent.start())
    agent.close()
    assert (folder / "windows-abc.sqlite3").exists()
