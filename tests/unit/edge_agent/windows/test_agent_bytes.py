"""What the agent takes of a disk: all files of the window store, and blobs of old versions that give way."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.training.model_blobs import ModelBlobs
from edge_agent.windows.rows import whole_bytes
from edge_agent.windows.store_file import rows_per_transaction, values_within
from protocol.tasks.task import Task, Window
from runtime.clock import SystemClock
from runtime.storage.blob_store import BlobStore
from tests.support.agent.data import toy_task
from tests.support.agent.parts import collector_of
from tests.unit.edge_agent.sources.test_agent_wishes import Remote
from tests.unit.edge_agent.windows.test_agent_store import windows

PLAIN = toy_task()
LARGE = toy_task(window=Window(length_s=160.0, stride_s=80.0))
"""Windows of 128 kB."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("budget", "task", "batches"),
    [(1_000_000, PLAIN, 10), (2_000_000, PLAIN, 20), (20_000_000, PLAIN, 110), (2_000_000, LARGE, 20)],
    ids=["1 MB", "2 MB", "20 MB", "2 MB of large windows"],
)
async def test_all_files_of_the_store_stay_within_its_budget(tmp_path, budget, task: Task, batches) -> None:
    """A budget of 2 MB took 6.6 MB: the WAL did not count, and the file was half as large again."""
    settings = AgentSettings.model_validate(
        {
            "fleet": "f",
            "device": "d",
            "state_dir": tmp_path,
            "source": [{}],
            "store": {"budget_bytes": budget},
        }
    )
    collector = collector_of(settings, [], SystemClock())
    await collector.use(task)
    store, most = collector.workspace.store, 0
    for n in range(batches):
        count = (250 if n % 2 else 7) if task is PLAIN else 1 + n % 4
        store.add(windows(list(np.random.default_rng(n).integers(0, 3, count)), n, task))
        assert store.commit()
        most = max(most, sum(path.stat().st_size for path in store.path.parent.iterdir()))
    stock = store.snapshot()
    assert sum(stock.dropped.values()) > stock.total > 3, "it was full, and keeps something"
    assert stock.lost == 0, "nothing waited for a disk that was none"
    assert most <= budget
    store.close()


def test_the_default_keeps_most_of_its_budget_for_windows() -> None:
    budget = AgentSettings.model_validate({"fleet": "f", "device": "d", "source": [{}]}).store.budget_bytes
    assert values_within(budget, whole_bytes(PLAIN)) > 0.7 * budget


def test_a_transaction_takes_at_least_one_window_and_no_more_than_the_wal_has_room_for() -> None:
    assert rows_per_transaction([10**9, 10], 10**6) == 1
    assert rows_per_transaction([2000] * 100, 10**6) < 20
    assert rows_per_transaction([2000] * 300, 2**28) == 300
    assert rows_per_transaction([], 10**6) == 0


@pytest.fixture
def small(tmp_path: Path):
    """A disk in memory of 400 KiB."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("SKIPPED LOUDLY: mounting a small disk needs root")
    folder = tmp_path / "cache" / "blobs"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_blobs_of_an_old_version_give_way_where_the_disk_is_too_full_for_a_new_one(small: Path) -> None:
    """Both are far below ``blob_budget_bytes``: the round was given up, again and again."""
    settings = AgentSettings.model_validate({"fleet": "f", "device": "d", "source": [{}]})
    blobs = BlobStore(small)
    remote = Remote(blobs)
    model_blobs = ModelBlobs(settings, blobs, remote)
    names = ("gate", "left", "right")
    old = remote.offer("t", gate=1, left=2, right=3)
    await model_blobs.fetch(old, names)
    new = remote.offer("t", gate=1, left=5, right=6)
    remote.pulled.clear()
    state = await model_blobs.fetch(new, names)
    assert [float(state[name][f"{name}/w"][0]) for name in names] == [1, 5, 6]
    assert remote.pulled == ["manifest", "left", "right"], "what both have is not pulled again"
