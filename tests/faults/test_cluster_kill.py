"""Leaders and processes that accept updates, over Mosquitto: kills and stops lose nothing."""

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.lease.table import LeaseTable
from coordinator.status.history import read
from coordinator.storage import schema
from coordinator.storage.location import Location
from tests.faults.test_coordinator_kill import check_history
from tests.support.coordinator.fake import FakeDevice, settings_for, tiny_task
from tests.support.network.brokers import mosquitto  # noqa: F401 - a fixture
from tests.support.services import beside
from tests.support.storage.postgres import shared_server

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

    async def keep(self) -> None:
        """As systemd: start it again unless it ended because all rounds are over."""
        while await self.process.wait() != 0:
            await self.start()

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    @property
    def log(self) -> str:
        return (self._folder / f"{self.name}.log").read_text()


@asynccontextmanager
async def cluster(folder: Path, port: int, task, *, leads: int = 2, ingests: int = 2, **storage: object):
    """Running processes, and three devices that are online; device i sends the value i."""
    (folder / "w.npz").touch()
    settings = {
        "exit_when_done": True,
        "evaluation": {"data": str(folder / "w.npz")},
        "cluster": {"lease_s": LEASE_S},
        "log": {"level": "info", "format": "json"},
        "storage": storage,
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
            await stack.enter_async_context(FakeDevice(port, f"d{i}", value=float(i))) for i in range(1, 4)
        ]
        yield running, fleet, Books(settings_for(folder, port, **settings).location)


class Books:
    """What the database says, read beside the processes."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def leader(self) -> tuple[str, int]:
        """The process that has the lease, and the epoch."""
        with self._location.database(alone=False) as store:
            lease, _ = LeaseTable(store, "lead", LEASE_S).read()
        return lease.holder, lease.epoch

    def check(self, rounds: int, fleet: list[FakeDevice]) -> None:
        """Each round counted each device once, and every update with a receipt, with that digest."""
        check_history(read(self._location), rounds, [device.name for device in fleet])
        with self._location.database(alone=False) as store:
            rows = store.rows(sa.select(schema.updates))
        counted = {(row["round"], row["device"]): row["digest"] for row in rows if not row["lost"]}
        for device in fleet:
            for receipt in device.receipts:
                if receipt.status == "accepted":
                    assert counted[receipt.round, device.name] == receipt.digest


def by_pid(running: dict[str, Process], holder: str) -> str:
    """The process that a lease's holder names."""
    return next(name for name, one in running.items() if str(one.process.pid) == holder.split("/")[1])


async def finished(running: dict[str, Process], seconds: float = 150) -> None:
    """Wait until a leader ends because all rounds are over."""
    leads = [one for name, one in running.items() if name.startswith("lead")]
    async with asyncio.timeout(seconds):
        while not any(one.process.returncode == 0 for one in leads):  # noqa: ASYNC110 - any of them
            await asyncio.sleep(0.1)


async def test_after_a_leader_and_an_ingest_process_were_killed_every_update_counts_once(tmp_path, mosquitto):  # noqa: F811
    task = tiny_task(count=3, min_devices=3)
    async with cluster(tmp_path, mosquitto.port, task) as (running, fleet, books):
        await fleet[0].wait_for(lambda: any(one.round == 1 for one in fleet[0].receipts), 60)
        holder, epoch = books.leader()
        running[by_pid(running, holder)].send(signal.SIGKILL)
        running["ingest-0"].send(signal.SIGKILL)
        await finished(running)
        assert books.leader()[1] == epoch + 1
        books.check(3, fleet)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> dict[str, object]:
    """``[storage]`` on each engine."""
    if request.param == "sqlite":
        return {}
    return {"url": shared_server().url(), "schema_name": f"cluster_{random.randrange(10**9)}"}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_whichever_process_is_killed_or_stopped_at_any_moment_nothing_is_lost_or_counted_twice(
    tmp_path,
    mosquitto,  # noqa: F811
    storage,
    how,
):
    rounds, rng = 25, random.Random(how)
    task = tiny_task(count=rounds, min_devices=3, deadline_s=300.0)
    async with cluster(tmp_path, mosquitto.port, task, ingests=3, **storage) as (running, fleet, books):
        async with beside(*(one.keep() for one in running.values())):
            ending = asyncio.create_task(finished(running, 500))
            for _ in range(12):
                await asyncio.wait([ending], timeout=rng.uniform(0.0, 2.0))
                if ending.done():
                    break
                victim = rng.choice(sorted(running))
                if how == "killed":
                    running[victim].send(signal.SIGKILL)
                    continue
                running[victim].send(signal.SIGSTOP)
                await asyncio.wait([ending], timeout=3 * LEASE_S)
                running[victim].send(signal.SIGCONT)
            await ending
        books.check(rounds, fleet)
