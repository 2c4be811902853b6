"""Leaders and processes that accept updates, over Mosquitto: kills and stops lose nothing."""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.lease.table import LeaseTable
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from tests.faults.test_coordinator_kill import check_books
from tests.support.coordinator.fake import FakeDevice, tiny_task
from tests.support.network.brokers import mosquitto  # noqa: F401 - a fixture

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(170)]
ROOT = Path(__file__).resolve().parents[2]
LEASE_S = 1.5


class Process:
    """One process of the cluster."""

    def __init__(self, folder: Path, name: str, args: dict[str, object]) -> None:
        self.name, self._folder = name, folder
        self._file = folder / f"{name}.json"
        self._file.write_text(json.dumps(args))
        self.process: asyncio.subprocess.Process

    async def start(self) -> "Process":
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.support.coordinator.child", str(self._file)),
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        return self

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    @property
    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text()


@asynccontextmanager
async def cluster(folder: Path, port: int, task, *, leads: int = 2, ingests: int = 2, devices: int = 3):
    """Running processes, and devices that are online; device i sends the value i."""
    (folder / "w.npz").touch()
    settings = {
        "exit_when_done": True,
        "evaluation": {"data": str(folder / "w.npz")},
        "cluster": {"lease_s": LEASE_S},
        "log": {"level": "info", "format": "json"},
    }
    args = {
        "root": str(folder),
        "port": port,
        "task": task.model_dump(mode="json"),
        "settings": settings,
        "slow": "",
    }
    roles = [("lead", n) for n in range(leads)] + [("ingest", n) for n in range(ingests)]
    running = {f"{role}-{n}": Process(folder, f"{role}-{n}", args | {"role": role}) for role, n in roles}
    async with AsyncExitStack() as stack:
        for one in running.values():
            await one.start()
            stack.push_async_callback(one.end)
        fleet = [
            await stack.enter_async_context(FakeDevice(port, f"d{i}", value=float(i)))
            for i in range(1, devices + 1)
        ]
        yield running, fleet


class Books:
    """What the database says, read beside the processes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "coordinator" / DATABASE

    def leader(self) -> tuple[str, int]:
        """The process that has the lease, as ``lead-N``, and the epoch."""
        with Database(self._path, alone=False) as store:
            lease, _ = LeaseTable(store, "lead", LEASE_S).read()
        return lease.holder, lease.epoch

    def accepted(self) -> dict[tuple[int, str], str]:
        with Database(self._path, alone=False) as store:
            rows = store.rows(sa.select(schema.updates))
        return {(row["round"], row["device"]): row["digest"] for row in rows if not row["lost"]}


def by_pid(running: dict[str, Process], holder: str) -> str:
    """The process that a lease's holder names."""
    return next(name for name, one in running.items() if str(one.process.pid) == holder.split("/")[1])


async def finished(running: dict[str, Process]) -> None:
    """Wait until a leader ends because all rounds are over."""
    leads = [one for name, one in running.items() if name.startswith("lead")]
    async with asyncio.timeout(150):
        while not any(one.process.returncode == 0 for one in leads):  # noqa: ASYNC110 - any of them
            await asyncio.sleep(0.1)


def check_acknowledged(folder: Path, fleet: list[FakeDevice]) -> None:
    """Every update with a receipt is in the books, with that digest."""
    counted = Books(folder).accepted()
    for device in fleet:
        for receipt in device.receipts:
            if receipt.status == "accepted":
                assert counted[receipt.round, device.name] == receipt.digest


async def test_after_a_leader_and_an_ingest_process_were_killed_every_update_counts_once(tmp_path, mosquitto):  # noqa: F811
    async with cluster(tmp_path, mosquitto.port, tiny_task(count=3, min_devices=3)) as (running, fleet):
        await fleet[0].wait_for(lambda: any(one.round == 1 for one in fleet[0].receipts), 60)
        holder, epoch = Books(tmp_path).leader()
        running[by_pid(running, holder)].send(signal.SIGKILL)
        running["ingest-0"].send(signal.SIGKILL)
        await finished(running)
        assert Books(tmp_path).leader()[1] == epoch + 1
    check_books(tmp_path, 3, ["d1", "d2", "d3"])
    check_acknowledged(tmp_path, fleet)
