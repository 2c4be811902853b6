"""A fleet whose coordinator has its tables on PostgreSQL, while the server crashes, freezes and is away."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.round_machine.queries import replay
from coordinator.status.history import read
from coordinator.storage.location import Location
from coordinator.storage.update_journal import Journal
from protocol.errors import Misconfigured
from protocol.frames.frame import digest
from tests.faults.test_coordinator_kill import Child, check_history, fleet
from tests.support.coordinator.fake import FakeDevice, settings_for, tiny_task
from tests.support.network.brokers import BrokerProcess, broker  # noqa: F401 - a fixture
from tests.support.storage.postgres import USER, PostgresServer

MANY = 12
_FLEETS = iter(range(1000))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that is stopped and crashed; durable, as an operator's."""
    made = PostgresServer().start()
    made.sql(f"CREATE DATABASE {USER}", database="postgres")
    yield made
    made.remove()


@pytest.fixture
def storage(server: PostgresServer) -> dict[str, object]:
    return {"url": server.url(), "schema_name": f"fleet_{next(_FLEETS)}", "connect_timeout_s": 2}


def location_of(folder: Path, storage: dict[str, object]) -> Location:
    return settings_for(folder, 1, storage=storage).location


def require_in_journal(location: Location, devices: list[FakeDevice]) -> int:
    """Every update that a device holds a receipt for has a row and its frame; returns how many frames."""
    looked = 0
    with location.database(read_only=True) as store:
        journal = Journal(store, location.state_dir / "updates")
        state, _ = replay(store.journal())
        for device in devices:
            for receipt in device.receipts:
                assert receipt.status == "accepted", receipt
                assert journal.find(device.name, receipt.digest) == receipt.round
                entry = journal.entries(receipt.round, [device.name])[0]
                if receipt.round > state.version:  # frames of folded rounds go, one by one
                    assert digest(entry.verified()) == receipt.digest
                    looked += 1
    return looked


async def receipts(devices: list[FakeDevice], more: int, seconds: float = 30) -> None:
    wanted = sum(len(device.receipts) for device in devices) + more
    async with asyncio.timeout(seconds):
        while sum(len(device.receipts) for device in devices) < wanted:  # noqa: ASYNC110 - of many devices
            await asyncio.sleep(0.001)


async def restart_as_designed(child: Child, devices: list[FakeDevice]) -> None:
    """It waits for its database, but for a commit whose success was found out too late."""
    said = (child.folder / "child.log").read_text()
    assert (child.process.returncode, "it must start again" in said) == (75, True), said
    await child.start()
    for device in devices:
        await device.hello()


@pytest.mark.long
async def test_a_crash_of_the_server_in_mid_storm_loses_no_receipt_and_counts_none_twice(
    tmp_path: Path,
    broker: BrokerProcess,  # noqa: F811
    server: PostgresServer,
    storage: dict[str, object],
) -> None:
    moments, location = random.Random(5), location_of(tmp_path, storage)
    task = tiny_task(count=4, min_devices=MANY, deadline_s=60.0)
    async with fleet(tmp_path, broker.port, task, count=MANY, storage=storage) as (child, devices):
        await child.start()
        for _ in range(3):
            await receipts(devices, moments.randrange(1, MANY))
            await asyncio.to_thread(server.crash)
            await asyncio.to_thread(server.start)
            require_in_journal(location, devices)
            if child.process.returncode is not None:
                await restart_as_designed(child, devices)
        await child.kill()
        require_in_journal(location, devices)
        await child.start()
        for device in devices:
            await device.hello()
        assert await child.status() == 0
    check_history(read(location), 4, sorted(f"d{n}" for n in range(1, MANY + 1)))


def test_a_server_that_does_not_sync_is_refused(tmp_path: Path) -> None:
    server = PostgresServer("fsync = off", "synchronous_commit = off").start()
    try:
        server.sql(f"CREATE DATABASE {USER}", database="postgres")
        storage: dict[str, object] = {"url": server.url()}
        with pytest.raises(Misconfigured, match="fsync = off: a power cut would lose updates"):
            location_of(tmp_path, storage).database()
        server.sql("ALTER SYSTEM SET fsync = on", "SELECT pg_reload_conf()")
        server.stop()
        server.start()
        with location_of(tmp_path, storage).database() as store, store.transaction() as connection:
            shown = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
        assert shown == "on", "the server's default is off; a receipt follows a commit"
    finally:
        server.remove()
