"""A device with two tasks against a real broker: shared sensors, worker and connection; separate fates."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edge_agent.agent import Agent
from edge_agent.app import load
from edge_agent.cli.main import app
from edge_agent.further_tasks import DeviceTasks
from models.contract import Profile
from models.registry import method
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import BlobRef
from protocol.tasks.task import Task
from protocol.topics import namespace
from tests.e2e.test_agent_e2e import DEVICE, write_config
from tests.support.agent.data import toy_task
from tests.support.agent.fake_coordinator import FLEET, FakeCoordinator
from tests.support.agent.parts import alive
from tests.support.network.brokers import broker
from tests.support.services import beside, until

__all__ = ["broker"]
MAIN = toy_task()
STEPS = toy_task(name="steps", labels=("a", "b", "c"), modalities=MAIN.modalities[:1])
TASKS = '[[tasks]]\nname = "steps"\n'


@pytest.fixture(autouse=True)
def _here(monkeypatch) -> None:
    """Child processes find the tests' worker."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def base_of(fake: FakeCoordinator, task: Task) -> BlobRef:
    """A small version."""
    rng = np.random.default_rng(0)
    state: dict[str, dict[str, np.ndarray]] = {}
    for name in method(task.method).server().route(task, Profile(task.modality_names)):
        if name.startswith("prototypes/"):
            size = (len(task.labels), task.network.feature_dim)
            zeros = np.zeros(size, np.float32), np.zeros(size[0], np.float32)
            state[name] = {f"{name}/values": zeros[0], f"{name}/rounds": zeros[1]}
        else:
            state[name] = {f"{name}/w": rng.normal(size=(8, 8)).astype(np.float32)}
    return fake.version(task, state)


@asynccontextmanager
async def coordinators(broker) -> AsyncIterator[tuple[FakeCoordinator, FakeCoordinator]]:
    """Of the main task, and of the further one."""
    both = [
        FakeCoordinator(broker.host, broker.port, fleet=namespace(FLEET, task)) for task in (None, "steps")
    ]
    async with AsyncExitStack() as stack:
        for one in both:
            await stack.enter_async_context(beside(one.run(), forever=True))
            await one.link.wait_connected()
        yield both[0], both[1]


@asynccontextmanager
async def device(config: Path) -> AsyncIterator[tuple[Agent, DeviceTasks]]:
    """A device with two tasks."""
    _, agent = load(config)
    assert isinstance(agent.others, DeviceTasks)
    async with alive(agent):
        yield agent, agent.others
        await agent.stop()


async def ready(fake: FakeCoordinator, task: Task) -> None:
    await fake.announce(task)
    await fake.until(lambda: fake.states and fake.states[-1].windows >= 8)


def round_of(update: bytes) -> tuple[str, int]:
    header, _ = decode_frame(update, UpdateHeader)
    return header.task, header.round


def said(*words: object) -> dict[str, Any]:
    """What a command of the agent says."""
    done = CliRunner().invoke(app, [*map(str, words), "--format", "json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def shown(config: Path, *words: str) -> dict[str, Any]:
    return said("status", "--config", config, *words)


async def test_a_further_task_starts_trains_and_ends_while_the_main_one_goes_on(tmp_path, broker) -> None:
    config = write_config(tmp_path, broker.port, TASKS)
    async with coordinators(broker) as (main, steps), device(config) as (agent, others):
        await ready(main, MAIN)
        await steps.until(lambda: steps.states)
        assert steps.states[-1].windows == 0, "nobody announced it: it is idle"
        await main.offer(DEVICE, MAIN, 1, base_of(main, MAIN))
        await main.until(lambda: main.updates)

        await ready(steps, STEPS)
        assert set(steps.states[-1].modalities) == {"acc"}
        await steps.offer(DEVICE, STEPS, 7, base_of(steps, STEPS))
        await steps.until(lambda: steps.updates)
        assert {round_of(one) for one in steps.updates} == {("steps", 7)}
        assert {round_of(one) for one in main.updates} == {("toy", 1)}

        further = others.tasks[0].agent
        assert further is not None
        await steps.withdraw()
        await until(lambda: further.tasks.workspace is None)
        saved = tmp_path / "state" / "tasks" / "steps" / "task.json"
        await until(lambda: not saved.exists())  # after a restart it is not begun again
        have = agent.collector.totals["acc"].windows
        await until(lambda: agent.collector.totals["acc"].windows > have)
        assert next(others.waits()).what == "task"
        assert further.outbox.waiting == 1
        await until(lambda: further.outbox.again_at is None)
        sent = len(steps.updates)

        await steps.announce(STEPS)
        await until(lambda: further.tasks.workspace is not None)
        await steps.until(lambda: len(steps.updates) > sent)  # it had no receipt
        await main.offer(DEVICE, MAIN, 2, base_of(main, MAIN))
        await main.until(lambda: ("toy", 2) in map(round_of, main.updates))


@pytest.mark.long
async def test_a_task_waits_for_its_turn_says_so_and_gets_it(tmp_path, broker) -> None:
    config = write_config(tmp_path, broker.port, TASKS)
    async with coordinators(broker) as (main, steps), device(config) as (agent, others):
        await ready(main, MAIN)
        await ready(steps, STEPS)
        await main.offer(DEVICE, MAIN, 14, base_of(main, MAIN))  # the worker hangs
        await until(lambda: "training round 14" in agent.learner.why, 20)
        await steps.offer(DEVICE, STEPS, 1, base_of(steps, STEPS))
        await until(lambda: any("waits for its turn: task 'toy'" in one.why for one in others.waits()), 20)
        assert steps.updates == []
        await main.offer(DEVICE, MAIN, 15, base_of(main, MAIN))  # ends round 14
        await steps.until(lambda: steps.updates)
        await main.until(lambda: main.updates)


async def test_a_task_that_cannot_be_done_or_crashes_ends_no_other(tmp_path, broker) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "steps"\nno_such_key = 1\n')
    config = write_config(tmp_path, broker.port, f'{TASKS}task_file = "{bad}"\n')
    async with coordinators(broker) as (main, steps), device(config) as (agent, others):
        await ready(main, MAIN)
        await steps.until(lambda: steps.states and steps.states[-1].refuses)
        assert "no_such_key" in str(steps.states[-1].refuses)
        await steps.announce(toy_task(name="steps", modalities=STEPS.modalities[:1], method="qqr"))
        await ready(steps, STEPS)

        further = others.tasks[0].agent
        assert further is not None
        further.storage.spool.close()  # as if its disk were gone
        (tmp_path / "state" / "tasks" / "steps" / "spool.sqlite3").unlink()
        await until(lambda: others.tasks[0].agent is not further, 30)
        assert "failed" in others.tasks[0].why
        assert others.status()["tasks"]["steps"]["state"] == others.tasks[0].why
        await main.offer(DEVICE, MAIN, 3, base_of(main, MAIN))
        await main.until(lambda: main.updates)
        assert agent.link.connected


@pytest.mark.long
async def test_commands_know_all_tasks_and_take_one(tmp_path, broker) -> None:
    config = write_config(tmp_path, broker.port, TASKS)
    async with coordinators(broker) as (main, steps), device(config):
        await ready(main, MAIN)
        await ready(steps, STEPS)
        await until((tmp_path / "cache" / "tasks" / "steps" / "status.json").exists, 20)
        await until(lambda: shown(config).get("tasks", {}).get("steps", {}).get("task") == "steps", 20)
        assert shown(config)["task"] == "toy"
        table = CliRunner().invoke(app, ["status", "--config", str(config)]).output
        assert "steps: runs; task steps, " in table
        await until(lambda: shown(config, "--task", "steps").get("task") == "steps", 20)
        found = await asyncio.to_thread(said, "label", "list", "--config", config, "--task", "steps")
        assert (found["task"], found["labels"]) == ("steps", ["a", "b", "c"])
        found = await asyncio.to_thread(said, "label", "list", "--config", config)
        assert found["task"] == "toy"
        assert said("check", "--config", config)["tasks"]["steps"]["fleet"] == f"{FLEET}~steps"
        wrong = CliRunner().invoke(app, ["status", "--config", str(config), "--task", "step"])
        assert wrong.exit_code == 78
        assert "no [[tasks]] table is named 'step'; there is steps" in wrong.output.replace("\n", " ")
