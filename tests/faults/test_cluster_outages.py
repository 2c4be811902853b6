"""Roles while PostgreSQL crashes in a storm, and where the broker cannot divide messages."""

import asyncio
import random
import signal
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.test_coordinator_postgres import receipts
from tests.support.coordinator.fake import tiny_task
from tests.support.network.brokers import BrokerProcess, mosquitto  # noqa: F401 - a fixture
from tests.support.network.nats import NatsNodes
from tests.support.processes.coordinator_roles import by_pid, cluster, finished
from tests.support.services import beside
from tests.support.storage.hung_session import HungSession
from tests.support.storage.postgres import USER, PostgresServer, shared_server

pytestmark = [pytest.mark.mosquitto, pytest.mark.long, pytest.mark.timeout(300)]
MANY = 12


async def test_crashes_of_postgres_in_a_storm_lose_no_receipt_and_count_none_twice(
    tmp_path: Path,
    mosquitto: BrokerProcess,  # noqa: F811
) -> None:
    server, rng = PostgresServer().start(), random.Random(7)
    try:
        server.sql(f"CREATE DATABASE {USER}", database="postgres")
        storage = {"url": server.url(), "connect_timeout_s": 2}
        task = tiny_task(count=5, min_devices=MANY, deadline_s=300.0)
        made = cluster(tmp_path, mosquitto.port, task, ingests=3, devices=MANY, storage=storage)
        async with made as (running, fleet, books):
            async with beside(*(one.keep() for one in running.values())):
                ending = asyncio.create_task(finished(running, 240))
                for _ in range(4):
                    await receipts(fleet, rng.randrange(1, MANY), 120)
                    await asyncio.to_thread(server.crash)
                    await asyncio.to_thread(server.start)
                    books.check_receipts(fleet)
                await ending
            books.check(5, fleet)
    finally:
        server.remove()


async def test_a_process_that_hangs_in_the_middle_of_a_statement_does_not_hold_up_the_rounds(
    tmp_path: Path,
    mosquitto: BrokerProcess,  # noqa: F811
) -> None:
    """It holds the lock that an ingest process has when it writes an update: no round can close."""
    schema, rounds = f"hung_{random.randrange(10**9)}", 3
    storage: dict[str, object] = {"url": shared_server().url(), "schema_name": schema}
    task = tiny_task(count=rounds, min_devices=3, deadline_s=300.0)
    async with cluster(tmp_path, mosquitto.port, task, storage=storage) as (running, fleet, books):
        await fleet[0].wait_for(lambda: any(one.round == 1 for one in fleet[0].receipts), 90)
        with closing(HungSession(shared_server(), schema, "SELECT * FROM intake FOR SHARE")) as hung:
            await finished(running)
            assert not hung.lives()
        books.check(rounds, fleet)


async def test_without_shared_subscriptions_one_process_serves_and_the_next_takes_over(
    tmp_path: Path,
) -> None:
    """NATS has no ``$share``: the second process waits for the lease of the first one."""
    rounds = 4
    with NatsNodes(tmp_path / "nats") as nodes:
        port = nodes.nodes[0].port
        made = cluster(
            tmp_path,
            port,
            tiny_task(count=rounds, min_devices=3, deadline_s=120.0),
            leads=1,
            storage={"url": shared_server().url(), "schema_name": f"nats_{random.randrange(10**9)}"},
            mqtt={"port": port, "protocol": "3.1.1", "backoff_min_s": 0.05, "backoff_max_s": 0.3},
            cluster={"lease_s": 1.5, "shared_subscriptions": False},
        )
        async with made as (running, fleet, books):
            await fleet[0].wait_for(lambda: any(one.round == 1 for one in fleet[0].receipts), 90)
            holder, epoch = books.leader("ingest")
            first = by_pid(running, holder)
            second = next(name for name in ("ingest-0", "ingest-1") if name != first)
            assert '"accepted"' in running[first].log
            assert '"accepted"' not in running[second].log, "one process serves, the other one waits"
            assert '"lease_held_by_another"' in running[second].log
            running[first].send(signal.SIGKILL)
            await finished(running, 150)
            assert books.leader("ingest") == (books.leader("ingest")[0], epoch + 1)
            assert '"accepted"' in running[second].log
            books.check(rounds, fleet)
