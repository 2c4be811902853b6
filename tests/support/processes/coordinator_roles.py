"""Leaders and processes that accept updates, as real processes beside scripted devices."""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import sqlalchemy as sa

from coordinator.lease.table import LeaseTable
from coordinator.status.history import read
from coordinator.storage import schema
from coordinator.storage.location import Location
from tests.faults.test_coordinator_kill import check_history
from tests.support.coordinator.fake import FakeDevice, settings_for

ROOT = Path(__file__).resolve().parents[3]
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
async def cluster(
    folder: Path,
    port: int,
    task,
    *,
    leads: int = 2,
    ingests: int = 2,
    devices: int = 3,
    apart: bool = False,
    storage: dict[str, object] | None = None,
    **changes: object,
):
    """Running processes, and devices that are online; device i sends the value i.

    Args:
        folder: for all files.
        port: of the broker.
        task: what the fleet learns.
        leads: processes that lead or wait.
        ingests: processes that accept updates.
        devices: their number.
        apart: each process has a state folder of its own, as on a machine of its own.
        storage: ``[storage]``.
        **changes: of the settings.
    """
    (folder / "w.npz").touch()
    storage = storage or {}
    settings = {
        "exit_when_done": True,
        "evaluation": {"data": str(folder / "w.npz")},
        "cluster": {"lease_s": LEASE_S},
        "log": {"level": "info", "format": "json"},
        "storage": storage,
        **changes,
    }
    args = {
        "port": port,
        "task": task.model_dump(mode="json"),
        "settings": settings,
        "slow": "",
    }
    roles = [("lead", n) for n in range(leads)] + [("ingest", n) for n in range(ingests)]
    running = {}
    for role, n in roles:
        root = folder / f"{role}-{n}" if apart else folder
        root.mkdir(exist_ok=True)
        running[f"{role}-{n}"] = Process(folder, f"{role}-{n}", args | {"role": role, "root": str(root)})
    async with AsyncExitStack() as stack:
        for one in running.values():
            await one.start()
            stack.push_async_callback(one.end)
        protocol = dict(settings.get("mqtt", {})).get("protocol", "5")
        fleet = [
            await stack.enter_async_context(FakeDevice(port, f"d{i}", value=float(i), protocol=protocol))
            for i in range(1, devices + 1)
        ]
        yield running, fleet, Books(settings_for(folder, port, **settings).location)


class Books:
    """What the database says, read beside the processes."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def leader(self, role: str = "lead") -> tuple[str, int]:
        """The process that has the lease, and the epoch."""
        with self._location.database(alone=False) as store:
            lease, _ = LeaseTable(store, role, LEASE_S).read()
        return lease.holder, lease.epoch

    def check(self, rounds: int, fleet: list[FakeDevice]) -> None:
        """Each round counted each device once, and every update with a receipt, with that digest."""
        check_history(read(self._location), rounds, sorted(device.name for device in fleet))
        self.check_receipts(fleet)

    def check_receipts(self, fleet: list[FakeDevice]) -> None:
        """Every update with a receipt is in the journal with that digest."""
        with self._location.database(alone=False) as store:
            rows = store.rows(sa.select(schema.updates))
        counted = {(row["round"], row["device"]): row["digest"] for row in rows if not row["lost"]}
        for device in fleet:
            for receipt in device.receipts:
                if receipt.status == "accepted":
                    found = counted.get((receipt.round, device.name))
                    assert found == receipt.digest, (device.name, receipt, device.receipts)


def by_pid(running: dict[str, Process], holder: str) -> str:
    """The process that a lease's holder names."""
    return next(name for name, one in running.items() if str(one.process.pid) == holder.split("/")[1])


async def finished(running: dict[str, Process], seconds: float = 150) -> None:
    """Wait until a leader ends because all rounds are over."""
    leads = [one for name, one in running.items() if name.startswith("lead")]
    async with asyncio.timeout(seconds):
        while not any(one.process.returncode == 0 for one in leads):  # noqa: ASYNC110 - any of them
            await asyncio.sleep(0.1)
