"""The window store keeps what came before each window, and files with and without it serve each other."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_agent.windows import store as module
from edge_agent.windows.observed_profile import restrict_to_profile
from edge_agent.windows.rows import WindowRow, as_set, rows_of, whole_bytes
from edge_agent.windows.store import WindowStore
from edge_agent.windows.store_file import grid_digest
from models.contract import Context, Profile, WindowSet
from models.data import window_set
from models.data.streams import context as contexts
from models.worker import job_folder
from protocol.tasks.task import Task, Window
from tests.support.agent.data import toy_task
from tests.unit.edge_agent.windows.test_agent_store import same
from tests.unit.edge_agent.windows.test_agent_store import windows as plain_windows

PLAIN = toy_task()
WINDOW_BYTES = 4 * (3 * 128 + 2 * 64)


def task_of(context_s: float | None) -> Task:
    return toy_task(window=Window(length_s=2.56, stride_s=1.28, context_s=context_s))


TASK = task_of(5.12)


def context_of(windows: WindowSet) -> Context:
    assert windows.context is not None
    return windows.context


def windows(classes: list[int], seed: int = 0) -> WindowSet:
    """Some without the second sensor, some with a gap on their way back."""
    rng, bare = np.random.default_rng(seed), plain_windows(classes, seed)
    count, names = len(classes), TASK.modality_names
    points_BM = np.where(bare.present_BM, rng.integers([128, 64], [257, 129], (count, 2)), 0)
    if count > 1:
        points_BM[1] = np.where(bare.present_BM[1], [128, 64], 0)
    x = {}
    for m, name in enumerate(names):
        window, length = TASK.samples(name), TASK.context_samples(name)
        x_BCL = rng.normal(size=(count, TASK.modality(name).channels, length)).astype(np.float32)
        x_BCL[..., -window:] = bare.x[name]
        known_BL = np.arange(length) >= length - points_BM[:, m, None]
        x[name] = np.where(known_BL[:, None], x_BCL, np.float32(0))
    return window_set.check(replace(bare, context=Context(x, points_BM)), TASK)


def make(folder: Path, task: Task = TASK, budget: int = 10_000_000) -> WindowStore:
    return WindowStore(folder, task, budget)


def same_contexts(a: WindowSet, b: WindowSet) -> None:
    same(a, b)
    np.testing.assert_array_equal(context_of(a).points_BM, context_of(b).points_BM)
    for name, x_BCL in context_of(a).x.items():
        np.testing.assert_array_equal(x_BCL, context_of(b).x[name])


def test_what_went_in_comes_out_committed_or_not_and_after_a_restart(tmp_path):
    store, given = make(tmp_path), windows([0, 1, 2, -1, 0, 1])
    store.add(window_set.select(given, np.arange(4)))
    assert store.commit()
    store.add(window_set.select(given, np.arange(4, 6)))
    same_contexts(store.recent(100, labelled=False), given)
    same_contexts(store.recent(2, labelled=False), window_set.select(given, [4, 5]))
    store.close()
    again = make(tmp_path)
    found = again.recent(100, labelled=False)
    same_contexts(found, given)
    window_set.check(found, TASK)
    assert context_of(again.recent(0, labelled=False)).points_BM.shape == (0, 2)
    again.close()


def test_the_file_is_named_as_ever_whatever_the_context():
    assert grid_digest(PLAIN) == "0871b96a12e0", "stores of devices in the field would be dropped"
    assert grid_digest(TASK) == grid_digest(PLAIN)


def test_another_length_trims_or_pads_and_loses_no_window(tmp_path):
    given = windows([0, 1, 2, 0, 1])
    store = make(tmp_path)
    store.add(given)
    store.use(PLAIN)
    bare = store.recent(9)
    assert bare.context is None
    same(bare, given)
    store.use(task_of(3.2))
    shorter = context_of(store.recent(9))
    np.testing.assert_array_equal(shorter.x["acc"], context_of(given).x["acc"][..., -160:])
    np.testing.assert_array_equal(shorter.points_BM, np.minimum(context_of(given).points_BM, [160, 80]))
    store.use(task_of(10.0))
    longer = context_of(store.recent(9))
    np.testing.assert_array_equal(longer.points_BM, context_of(given).points_BM)
    np.testing.assert_array_equal(longer.x["gyr"][..., -128:], context_of(given).x["gyr"])
    assert not longer.x["gyr"][..., :-128].any()
    store.use(TASK)
    same_contexts(store.recent(9), given)
    store.close()


OLD = """
CREATE TABLE windows (id INTEGER PRIMARY KEY, y INTEGER NOT NULL, present BLOB NOT NULL,
  quality BLOB NOT NULL, x BLOB NOT NULL);
CREATE INDEX by_class ON windows (y, id);
CREATE TABLE dropped (y INTEGER PRIMARY KEY, n INTEGER NOT NULL);
"""
OLD_INSERT = "INSERT INTO windows (y, present, quality, x) VALUES (?, ?, ?, ?)"


def test_a_file_of_a_release_that_knew_no_contexts_serves_both(tmp_path):
    bare = plain_windows([0, 1, 2, 0])
    path = tmp_path / f"windows-{grid_digest(PLAIN)}.sqlite3"
    db = sqlite3.connect(path)
    db.executescript(OLD)
    for row in rows_of(PLAIN, bare):
        db.execute(OLD_INSERT, (row.y, row.present, row.quality, row.x))
    db.commit()
    db.close()
    store, given = make(tmp_path), windows([1, 1], 5)
    store.add(given)
    found = store.recent(9)
    window_set.check(found, TASK)
    same(found, window_set.concat([bare, replace(given, context=None)]))
    np.testing.assert_array_equal(
        context_of(found).points_BM[:4], np.where(bare.present_BM, [128, 64], 0), "known alone"
    )
    np.testing.assert_array_equal(context_of(found).points_BM[4:], context_of(given).points_BM)
    store.close()
    db = sqlite3.connect(path)  # the old release is installed again, and then the new one
    row = rows_of(PLAIN, plain_windows([2]))[0]
    db.execute(OLD_INSERT, (row.y, row.present, row.quality, row.x))
    db.commit()
    db.close()
    again = make(tmp_path)
    assert again.snapshot().total == 7
    assert context_of(again.recent(9)).points_BM[-1].tolist() == [128, 0]
    again.close()


def test_contexts_count_for_the_budget(tmp_path):
    budget = 60 * WINDOW_BYTES
    store = make(tmp_path, budget=budget)
    for k in range(10):
        store.add(windows([0] * 10, k))
        store.commit()
        assert store.snapshot().bytes <= budget
    kept = store.snapshot().total
    assert 25 <= kept < 60, "windows and contexts together, about twice a window each"
    store.close()
    again = make(tmp_path, budget=budget)
    assert again.snapshot() == replace(store.snapshot(), lost=0)
    again.close()


def test_long_contexts_that_wait_for_a_commit_and_that_are_read_are_bounded(tmp_path, monkeypatch):
    assert whole_bytes(TASK) == 2 * WINDOW_BYTES
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 10 * whole_bytes(TASK))
    store = make(tmp_path, budget=7 * whole_bytes(TASK) + 100)
    store.add(windows([0] * 4))
    assert not store.is_due
    store.add(windows([0] * 4))
    assert store.is_due, "it is not waited until so many are lost"
    store.add(windows([0] * 4))
    assert store.pending == 10
    assert store.snapshot().lost == 2
    assert len(store.recent(100)) == 7, "in memory they are whole"
    monkeypatch.setattr(module, "MAX_READ_BYTES", 3 * whole_bytes(TASK))
    assert len(store.recent(100)) == 3, "whatever the budget: the worker reads files of a bounded size"
    store.use(PLAIN)
    assert len(store.recent(100)) == 6, "windows alone are half as large, and bounded likewise"
    store.close()


def test_a_modality_that_is_not_read_is_masked_in_the_context_too():
    given = windows([0, 1, 2, 0, 1])
    found = restrict_to_profile(TASK, Profile(("gyr",)), given)
    assert not context_of(found).x["acc"].any()
    assert not context_of(found).points_BM[:, 0].any()
    np.testing.assert_array_equal(context_of(found).x["gyr"], context_of(given).x["gyr"])
    window_set.check(found, TASK)
    same_contexts(restrict_to_profile(TASK, Profile(("acc", "gyr")), given), given)


def test_a_job_carries_contexts_to_the_worker(tmp_path):
    given = windows([0, 1, -1, -1])
    job_folder.write_train(tmp_path, job_folder.TrainJob(TASK, "d", 1, 0), given, {}, {})
    same_contexts(window_set.load(tmp_path / job_folder.WINDOWS, TASK), given)


@pytest.mark.parametrize(
    "context",
    [
        b"short",
        np.array([5, 0], "<u4").tobytes(),
        np.array([5, 0], "<u4").tobytes() + bytes(4 * 15 - 1),
        np.array([5, 0], "<u4").tobytes() + bytes(4 * 15 + 1),
        np.array([5, 1], "<u4").tobytes() + bytes(4 * 17),
        np.array([2**32 - 1, 0], "<u4").tobytes(),
    ],
)
def test_a_context_that_is_not_what_was_written_is_found(context):
    row = rows_of(PLAIN, plain_windows([0]))[0]  # without the second sensor
    good = np.array([5, 0], "<u4").tobytes() + np.arange(15, dtype="<f4").tobytes()
    found = context_of(as_set(TASK, [replace(row, context=good)]))
    assert found.points_BM.tolist() == [[133, 0]]
    assert found.x["acc"][0, 1, 122:128].tolist() == [0, 5, 6, 7, 8, 9]
    with pytest.raises((ValueError, IndexError)):
        as_set(TASK, [replace(row, context=context)])


def test_windows_with_nothing_before_them_cost_nothing():
    given = windows([0])
    alone = contexts.masked(context_of(given), np.array([[False, False]]), TASK.modality_names)
    rows = rows_of(TASK, replace(given, context=alone))
    assert rows[0].context is None
    assert rows[0].values_bytes == len(rows[0].x)
    assert WindowRow(0, b"", b"", b"abc", None, b"de").values_bytes == 5
