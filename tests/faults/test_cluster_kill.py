"""Leaders and processes that accept updates, over Mosquitto: kills and stops lose nothing."""

import asyncio
import random
import signal

import pytest

from tests.support.coordinator.fake import tiny_task
from tests.support.network.brokers import mosquitto  # noqa: F401 - a fixture
from tests.support.processes.coordinator_roles import LEASE_S, by_pid, cluster, finished
from tests.support.services import beside
from tests.support.storage.postgres import shared_server

pytestmark = [pytest.mark.mosquitto, pytest.mark.timeout(170)]


@pytest.mark.long
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
    async with cluster(tmp_path, mosquitto.port, task, ingests=3, storage=storage) as (running, fleet, books):
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
