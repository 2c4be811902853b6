"""SIGKILL at every phase, and at random: nothing that was acknowledged is lost or counted twice."""

import asyncio
import json
import random
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from coordinator.status.history import read
from protocol.messages import Offer
from tests.support.coordinator.fake import FakeDevice, tiny_task
from tests.support.network.brokers import BrokerProcess, broker  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[2]


class Child:
    def __init__(self, folder: Path, port: int, task, **settings: object) -> None:
        (folder / "w.npz").touch()
        self.folder = folder
        self.args = {
            "root": str(folder),
            "port": port,
            "task": task.model_dump(mode="json"),
            "settings": {"exit_when_done": True, "evaluation": {"data": str(folder / "w.npz")}, **settings},
        }
        self.process: asyncio.subprocess.Process

    async def start(self, slow: str = "") -> None:
        file = self.folder / "args.json"
        file.write_text(json.dumps(self.args | {"slow": slow}))
        with (self.folder / "child.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.support.coordinator.child",
                str(file),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def status(self) -> int:
        async with asyncio.timeout(30):
            status = await self.process.wait()
        if status:
            sys.stderr.write((self.folder / "child.log").read_text())
        return status


@asynccontextmanager
async def fleet(folder: Path, port: int, task, count: int = 3, **settings: object):
    """A child (not started) and devices that are online; device i sends the value i."""
    child = Child(folder, port, task, **settings)
    async with AsyncExitStack() as stack:
        devices = [
            await stack.enter_async_context(FakeDevice(port, f"d{i}", value=float(i)))
            for i in range(1, count + 1)
        ]
        try:
            yield child, devices
        finally:
            await child.kill()


def check_books(folder: Path, rounds: int, names: list[str]) -> None:
    """Each round counted each device exactly once."""
    check_history(read(folder / "coordinator"), rounds, names)


def check_history(found: dict, rounds: int, names: list[str]) -> None:
    """The same of a history: device i adds i, so the mean is known."""
    mean = sum(range(1, len(names) + 1)) / len(names)
    assert found["phase"] == "done"
    assert [v["version"] for v in found["versions"]] == list(range(rounds + 1))
    assert [v["devices"] for v in found["versions"][1:]] == [names] * rounds
    assert [v["metrics"]["accuracy"] for v in found["versions"]] == [mean * r for r in range(rounds + 1)]
    assert [v["parent"] for v in found["versions"][1:]] == [v["manifest"] for v in found["versions"][:-1]]


@pytest.mark.parametrize(
    ("slow", "phase"),
    [
        pytest.param("initial", "initialising", marks=pytest.mark.long),
        ("fold", "aggregating"),
        pytest.param("evaluate", "evaluating", marks=pytest.mark.long),
        pytest.param("export", "exporting", marks=pytest.mark.long),
    ],
)
async def test_killed_while_working_it_resumes_and_ends_well(tmp_path, broker, slow: str, phase: str) -> None:  # noqa: F811
    async with fleet(tmp_path, broker.port, tiny_task(count=1, min_devices=3)) as (child, devices):
        await child.start(slow)
        await devices[0].wait_for(lambda: any(r.phase == phase for r in devices[0].rounds))
        await child.kill()
        await child.start()
        # As agents do now and then: to a client that comes again, the embedded broker does not send once more
        # what it retained, nor what an earlier life was given and had not acknowledged.
        for device in devices:
            await device.hello()
        assert await child.status() == 0
    check_books(tmp_path, 1, ["d1", "d2", "d3"])


def _work(offer: Offer) -> str:
    """What an offer asks for, as text: all but the time that is left."""
    return offer.model_dump_json(exclude={"closes_in_s", "answer_within_s"})


async def test_killed_in_mid_round_it_keeps_what_it_acknowledged(tmp_path, broker) -> None:  # noqa: F811
    async with fleet(tmp_path, broker.port, tiny_task(count=1, min_devices=3)) as (child, devices):
        devices[2].mute = True
        await child.start()
        await devices[0].wait_for(lambda: any(r.accepted == ("d1", "d2") for r in devices[0].rounds))
        await devices[0].wait_for(lambda: bool(devices[0].receipts))
        await child.kill()
        asked, receipt = _work(devices[0].offers[-1]), devices[0].receipts[-1]
        before = devices[0].rounds[-1]
        devices[2].mute = False
        await child.start()
        assert await child.status() == 0
        # The offer may come again; an agent does its work once, after a restart too (test_agent_outbox.py).
        assert {_work(offer) for offer in devices[0].offers} == {asked}, "the same work as before"
        assert {(one.status, one.digest) for one in devices[0].receipts} == {("accepted", receipt.digest)}
        assert devices[0].rounds[-1].bytes_up > before.bytes_up, "bytes are counted over restarts"
    check_books(tmp_path, 1, ["d1", "d2", "d3"])
    assert len(read(tmp_path / "coordinator")["rounds"][0]["attempts"]) == 1


@pytest.mark.long
async def test_killed_at_random_moments_every_update_still_counts_once(tmp_path, broker) -> None:  # noqa: F811
    moments = random.Random(5)
    async with fleet(tmp_path, broker.port, tiny_task(count=6, min_devices=3)) as (child, _):
        for _ in range(4):
            await child.start()
            await asyncio.sleep(moments.uniform(0.9, 1.6))
            await child.kill()
        await child.start()
        assert await child.status() == 0
    check_books(tmp_path, 6, ["d1", "d2", "d3"])


async def test_the_broker_dies_in_mid_round_and_comes_back(tmp_path, broker) -> None:  # noqa: F811
    async with fleet(tmp_path, broker.port, tiny_task(count=2, min_devices=3)) as (child, devices):
        devices[2].mute = True
        await child.start()
        await devices[0].wait_for(lambda: any(r.accepted == ("d1", "d2") for r in devices[0].rounds))
        broker.kill()
        broker.start()
        devices[2].mute = False
        assert await child.status() == 0
    check_books(tmp_path, 2, ["d1", "d2", "d3"])
