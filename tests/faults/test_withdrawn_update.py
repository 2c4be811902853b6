"""Real halves over Mosquitto: an update that was accepted and then refused is reported, whatever restarts."""

import asyncio
import random
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from edge_agent.agent import Agent
from edge_agent.config.agent import AgentSettings
from edge_agent.opening import open_agent
from lichen_lab.simulation.deterministic.scenario.toy_method import ToySource, ToyTrainer
from protocol.errors import Reason
from runtime.clock import SystemClock
from tests.support.agent.parts import alive
from tests.support.coordinator.fake import FLEET
from tests.support.coordinator.withdrawing_child import Hasty
from tests.support.services import until

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def coordinator(folder: Path, port: int, *how: str) -> AsyncIterator[asyncio.subprocess.Process]:
    with (folder / "child.log").open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.coordinator.withdrawing_child",
            str(folder),
            str(port),
            *how,
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@asynccontextmanager
async def agent(folder: Path, port: int, name: str, train_s: float) -> AsyncIterator[Agent]:
    clock, rng = SystemClock(), random.Random(name)
    (folder / name).mkdir(exist_ok=True)
    settings = AgentSettings.model_validate(
        {
            "fleet": FLEET,
            "device": name,
            "state_dir": folder / name,
            "cache_dir": folder / name / "cache",
            "source": ({"kind": "toy"},),
            "mqtt": {"port": port, "backoff_min_s": 0.05, "backoff_max_s": 0.2},
            "windows": {"lateness_s": 0.1},
            "store": {"commit_every_s": 0.2},
            "outbox": {"resend_s": 1.0},
            "infer": {"enabled": False},
            "state_every_s": 0.2,
        }
    )
    rates = {"acc": 2, "temp": 1}
    worker = ToyTrainer(clock, train_s, rng if train_s else Hasty(1), 0.0)
    made = open_agent(settings, [ToySource(rates, clock, rng, 5.0, 0.0)], clock, worker=worker)
    async with alive(made):
        yield made


def rows(folder: Path, query: str) -> list[tuple]:
    path = folder / "coordinator" / "coordinator.sqlite3"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10) as database:
        return database.execute(query).fetchall()


@pytest.mark.long
async def test_a_refusal_after_the_receipt_is_said_over_kills_of_both_until_it_is_confirmed(
    tmp_path: Path, mosquitto
) -> None:
    port = mosquitto.port
    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(agent(tmp_path, port, "slow", 10_000.0))
        async with agent(tmp_path, port, "d1", 0.0) as device, coordinator(tmp_path, port):
            await until(lambda: device.outbox.accepted == 1, 40)
        [frame] = (tmp_path / "coordinator" / "updates" / "1").iterdir()
        frame.write_bytes(frame.read_bytes()[:-20])  # the card forgot some of it
        async with coordinator(tmp_path, port, "die") as child, asyncio.timeout(40):
            assert await child.wait() == -9
        assert len(rows(tmp_path, "select * from withdrawn")) == 1  # committed, and said to nobody
        device = await stack.enter_async_context(agent(tmp_path, port, "d1", 10_000.0))
        await stack.enter_async_context(coordinator(tmp_path, port))
        await until(lambda: device.outbox.withdrawn == 1, 40)
        assert device.outbox.last_refusal.startswith(Reason.WRONG_DIGEST)
        assert [e.status for e in device.storage.ledger._entries] == ["refused"]
        await until(lambda: rows(tmp_path, "select * from withdrawn") == [], 40)
        assert slow.outbox.withdrawn == 0
