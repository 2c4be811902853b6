import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edge_agent.windows.store import MAX_PENDING, WindowStore
from models.contract import WindowSet
from models.data.window_set import check, concat, select
from protocol.errors import Transient
from protocol.tasks.task import Task
from tests.support.agent.data import toy_task

TASK = toy_task()
WINDOW_BYTES = 4 * (3 * 128 + 2 * 64)


def windows(classes: list[int], seed: int = 0, task: Task = TASK) -> WindowSet:
    rng = np.random.default_rng(seed)
    count = len(classes)
    present = np.ones((count, 2), np.bool_)
    present[::3, 1] = False
    x = {
        m.name: rng.normal(size=(count, m.channels, task.samples(m.name))).astype(np.float32)
        for m in task.modalities
    }
    x["gyr"][::3] = 0
    quality = np.where(present, rng.uniform(0, 1, (count, 2)), 1).astype(np.float32)
    return WindowSet(x, present, quality, np.array(classes, np.int64))


def make(folder: Path, budget: int = 10_000_000) -> WindowStore:
    return WindowStore(folder, TASK, budget)


def same(a: WindowSet, b: WindowSet) -> None:
    for name, x_BCT in a.x.items():
        np.testing.assert_array_equal(x_BCT, b.x[name])
    np.testing.assert_array_equal(a.present_BM, b.present_BM)
    np.testing.assert_array_equal(a.quality_BM, b.quality_BM)
    np.testing.assert_array_equal(a.y_B, b.y_B)


def test_what_went_in_comes_out_newest_last(tmp_path):
    store, given = make(tmp_path), windows([0, 1, 2, -1, 0, 1])
    store.add(select(given, np.arange(3)))
    store.add(select(given, np.arange(3, 6)))
    labelled = store.recent(100)
    same(labelled, select(given, given.y_B >= 0))
    same(store.recent(2), select(given, [4, 5]))
    same(store.recent(100, labelled=False), given)
    check(labelled, TASK)
    store.close()


def test_it_is_there_after_a_restart_and_counts_agree(tmp_path):
    store, given = make(tmp_path), windows([0, 1, 2, -1, 0, 1])
    store.add(given)
    before = store.snapshot()
    store.close()
    again = make(tmp_path)
    after = again.snapshot()
    assert after.counts == before.counts == {"acc": (2, 2, 1), "gyr": (1, 2, 1)}
    assert after.labelled == 5
    assert after.total == 6
    assert after.missing == pytest.approx({"acc": 0, "gyr": 1 / 3})
    assert after.quality["acc"] == pytest.approx(given.quality_BM[:, 0].mean(), abs=1e-6)
    same(again.recent(10, labelled=False), given)
    again.close()


def test_the_most_frequent_class_makes_room_and_drops_are_counted(tmp_path):
    store = make(tmp_path, 60 * WINDOW_BYTES)
    store.add(windows([1] * 5))
    for k in range(20):
        store.add(windows([0] * 10, k))
        store.commit()
    stock = store.snapshot()
    assert stock.bytes <= 60 * WINDOW_BYTES
    assert stock.counts["acc"][1] == 5, "the rare class stays"
    assert stock.dropped[0] + stock.counts["acc"][0] == 200
    newest = store.recent(10)
    np.testing.assert_array_equal(newest.x["acc"], windows([0] * 10, 19).x["acc"])
    store.close()
    again = make(tmp_path, 60 * WINDOW_BYTES)
    assert again.snapshot().dropped == stock.dropped
    again.close()


def test_a_batch_larger_than_the_budget_still_goes_through(tmp_path):
    store = make(tmp_path, 65536)
    store.add(windows([0, 1] * 1000))
    assert store.commit()
    assert store.snapshot().bytes <= 65536
    assert store.path.stat().st_size < 65536 * 1.5 + 1024 * 1024 + 4096
    store.close()


def test_a_corrupt_file_is_moved_aside(tmp_path):
    store = make(tmp_path)
    store.add(windows([0, 1]))
    store.close()
    store.path.write_bytes(b"this is no database" * 500)
    again = make(tmp_path)
    assert again.snapshot().total == 0
    again.add(windows([1]))
    assert again.commit()
    again.close()
    assert len(list(tmp_path.glob("*.corrupt-1"))) == 1


def test_a_full_disk_is_survived_and_nothing_is_counted_twice(tmp_path):
    store = make(tmp_path)
    store.add(windows([0, 1, 2]))
    assert store.commit()
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    more = windows([0, 1, 2] * 100, 1)
    store.add(more)
    assert not store.commit()
    assert store.snapshot().total == 303
    assert len(store.recent(1000)) == 303, "what waits in memory is still learnt from"
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.commit()
    assert store.snapshot().total == 303
    assert store.snapshot().lost == 0
    store.close()


def test_the_batch_that_waits_is_bounded(tmp_path):
    store = make(tmp_path)
    one = windows([0] * 256)
    for _ in range(MAX_PENDING // 256 + 2):
        store.add(one)
    assert store.pending == MAX_PENDING
    assert store.snapshot().lost == 512
    store.close()


def test_a_closed_store_says_so(tmp_path):
    store = make(tmp_path)
    store.close()
    store.add(windows([0]))
    with pytest.raises(Transient, match="closed"):
        store.recent(1)


CHILD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.unit.edge_agent.windows.test_agent_store import make, windows
store = make(Path(sys.argv[1]))
k = 0
while True:
    store.add(windows([k % 3] * 8, k)); store.commit(); k += 1
    print(k, flush=True)
"""


def test_a_sigkill_leaves_a_store_that_opens_with_every_commit_in_it(tmp_path):
    root = str(Path(__file__).parents[4])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), root], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            if int(line) >= 20:
                break
        time.sleep(0.013)
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()
    child.wait(10)
    said = int(rest[-1]) if rest and rest[-1].isdigit() else 20
    store = make(tmp_path)
    total = store.snapshot().total
    assert total % 8 == 0
    assert total >= 8 * (said - 1)
    expected = concat([windows([k % 3] * 8, k) for k in range(total // 8)])
    same(store.recent(10**6), expected)
    store.close()
    db = sqlite3.connect(store.path)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
