"""The coordinator's child processes cannot open the fleet's keys, and do their work all the same."""

import errno
import json
import os
from pathlib import Path

import pytest

from coordinator.config.versions import WorkerSettings
from coordinator.workers.jobs import WorkerJobs, secrets_in
from models.data import window_set
from runtime.process import landlock
from runtime.process.worker import Worker
from tests.support.agent.data import toy_task
from tests.support.identity.desk import make_desk
from tests.unit.edge_agent.windows.test_agent_store import windows

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.skipif(
    not landlock.version(), reason="SKIPPED LOUDLY: this kernel has no Landlock, nothing is shown of it"
)


@pytest.fixture
def state(tmp_path) -> Path:
    """A state folder with an authority, our own certificates, the broker's files and the book."""
    with make_desk(tmp_path) as desk:
        desk.publish()
        folder = desk.places.state_dir
        (folder / "updates").mkdir()
        (folder / "run_id").write_text("free")
        (folder / "trust" / "keys").mkdir(parents=True)
        (folder / "trust" / "keys" / "online.pem").write_text("the key that signs")
        yield folder


async def test_a_child_process_reads_no_key_of_the_fleet(state) -> None:
    job = state / "jobs" / "1"
    job.mkdir(parents=True)
    found = {}
    for hidden in (secrets_in(state), []):
        env = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        worker = Worker("tests.support.identity.secret_reader", warm=False, hidden=hidden, env=env)
        await worker.run(job, 60.0)
        found[bool(hidden)] = json.loads((job / "result.json").read_text())
    keys = {
        "ca.key",
        "https.pem",
        "coordinator.pem",
        "observer.pem",
        "server.pem",
        "identity.sqlite3",
        "online.pem",
    }
    assert {found[True][name] for name in keys} == {errno.EACCES}
    assert found[True]["run_id"] == found[False]["run_id"], "all else is as open as it was"
    assert all(isinstance(found[False][name], str) for name in keys), "and else they are open"


@pytest.mark.long
async def test_with_its_keys_hidden_a_worker_makes_a_version_and_judges_it_on_files_of_the_state_folder(
    state,
) -> None:
    """Also when the file is replaced while the worker waits for its next job."""
    task = toy_task(method="qqr")
    file = state / "test.npz"
    window_set.save(file, windows([0, 2] * 4, task=task))
    jobs = WorkerJobs(task, state / "jobs", file, WorkerSettings())
    try:
        first = await jobs.initial()
        for count in (8, 12):
            assert (await jobs.evaluate(first)).metrics["windows"] == count
            window_set.save(file, windows([0, 2] * 6, task=task))
    finally:
        await jobs.close()
