"""``lichen coordinator status`` of a coordinator of several processes."""

import asyncio
import json
import re
from contextlib import AsyncExitStack

import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.cluster.app import open_ingest
from coordinator.lease.heartbeat import ProcessHeartbeat, read_cluster
from coordinator.lease.table import LeaseTable
from coordinator.status.cluster_words import cluster_json, cluster_lines, cluster_waits
from coordinator.storage import schema
from coordinator.storage.database import Database
from runtime.clock import SystemClock
from runtime.concurrency.threads import Threads
from tests.support.coordinator.bench import bench
from tests.support.coordinator.cluster import leading
from tests.support.coordinator.fake import TinyServer, settings_for, tiny_task
from tests.support.services import beside, until
from tests.support.tasks import stream, task_toml

pytestmark = pytest.mark.both_engines


async def status(folder, *options: str):
    (folder / "task.toml").write_text(task_toml(name="tiny", method="qqr", streams={"acc": stream(3, 10)}))
    config = folder / "coordinator.toml"
    config.write_text('fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n')
    words = ["status", "-c", str(config), *options]
    return await asyncio.to_thread(CliRunner().invoke, app, words, env={"COLUMNS": "300"})


async def test_status_names_the_leader_and_the_processes_that_accept_updates(tmp_path):
    async with leading(tmp_path, holder="site/1/ab") as lead:
        found = json.loads((await status(tmp_path, "--format", "json")).stdout)
        waits = {one["what"]: one["why"] for one in found["waits"]}
        assert waits["ingest"] == "no process accepts updates"
        store, settings = lead.app.storage.store, settings_for(tmp_path, 1)
        async with AsyncExitStack() as stack:
            worker = await stack.enter_async_context(open_ingest(settings, tiny_task(), TinyServer()))
            async with beside(worker.services["heartbeat"]):
                await until(lambda: read_cluster(store).ingest)
                found = json.loads((await status(tmp_path, "--format", "json")).stdout)
                [name] = read_cluster(store).ingest
                leader, [one] = found["leader"], found["ingest"]
                assert (leader["holder"], leader["epoch"], leader["leads"]) == ("site/1/ab", 1, True)
                assert leader["until"] > leader["left_s"] > 0
                assert (one["process"], one["running"]) == (name, True)
                assert not {"leader", "ingest"} & {one["what"] for one in found["waits"]}
                for option in ((), ("--why",)):
                    told = (await status(tmp_path, *option)).stdout
                    assert "leader: site/1/ab, epoch 1, for " in told
                    assert re.search(f"ingest: {name}, heard [0-9] s ago, running", told)
        assert read_cluster(store).ingest == {}, "it ended in order"


@pytest.fixture
def killed(tmp_path) -> Database:
    """The database after SIGKILL of a leader and of a process that accepts updates."""
    (tmp_path / "coordinator").mkdir()
    with settings_for(tmp_path, 1).location.database(alone=False) as store:
        assert LeaseTable(store, "lead", 1e-6).take("site/1/ab")[0] is not None
        heartbeat = ProcessHeartbeat(store, "site/2/cd", SystemClock(), Threads("test", 1))
        heartbeat.note()
        yield store


def test_a_leader_that_is_gone_and_a_process_that_is_silent_are_waits(killed):
    waits = {one.what: one.why for one in cluster_waits(read_cluster(killed))}
    assert waits == {"leader": "no process leads, so no round closes; the last one was site/1/ab"}
    killed.put(schema.leases, role="ingest/site/2/cd", holder="site/2/cd", epoch=0, until=1.0)
    waits = {one.what: one.why for one in cluster_waits(read_cluster(killed))}
    assert waits["ingest"] == "no process accepts updates (site/2/cd silent)"
    leader, ingest = cluster_lines(cluster_json(read_cluster(killed)))
    assert leader == "leader: none"
    assert ingest.endswith("silent: it hangs or was killed")
    ProcessHeartbeat(killed, "site/3/ef", SystemClock(), Threads("test", 1)).note()
    assert list(read_cluster(killed).ingest) == ["site/3/ef"], "what was silent for an hour is forgotten"


async def test_after_a_cluster_was_killed_status_of_serve_names_no_other_process(tmp_path, killed):
    killed.close()
    async with bench(tmp_path) as made:
        view = read_cluster(made.app.storage.store)
        assert (cluster_lines(cluster_json(view)), cluster_waits(view)) == ([], [])
        assert view.leader.epoch == 1, "the next leader has another one than the one that was killed"
