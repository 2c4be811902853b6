"""What a bad disk does to the window store: no room at the start, damage inside, pages half empty."""

import sqlite3
import threading

import numpy as np
import pytest
import structlog

from edge_agent.windows import store as module
from edge_agent.windows.store import WindowStore
from edge_agent.windows.store_file import evict_above
from models.contract import WindowSet
from protocol.errors import Transient
from protocol.tasks.task import Modality, Task, Window
from tests.unit.edge_agent.windows.test_agent_store import TASK, make, windows

SPARSE = Task(
    name="sparse",
    labels=("a", "b"),
    modalities=(Modality(name="acc", channels=6, rate_hz=50),),
    window=Window(length_s=1.8, stride_s=1.8),
)
"""A window of 2160 bytes: one fits a page of 4096, two do not."""


def test_a_disk_that_is_full_at_the_start_is_survived(tmp_path, monkeypatch):
    def no_room(path, _budget):
        raise Transient(f"{path}: database or disk is full")

    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(module, "open_file", no_room)
        store = make(tmp_path)
        store.add(windows([0, 1, 2]))
        assert not store.commit()
        assert not store.commit()
        assert store.snapshot().total == 3
        assert len(store.recent(10)) == 3, "what waits in memory is learnt from"
    said = [entry for entry in logs if entry["log_level"] == "error"]
    assert len(said) == 1, "said once"
    assert said[0]["file"] == str(store.path)
    assert store.commit(), "there is room again"
    store.close()
    again = make(tmp_path)
    assert again.snapshot().total == 3
    again.close()


def test_a_file_of_half_empty_pages_makes_room_before_the_hard_stop(tmp_path):
    budget = 4 * 1024 * 1024
    store, rng = WindowStore(tmp_path, SPARSE, budget), np.random.default_rng(0)
    for _ in range(20):
        x = {"acc": rng.normal(size=(250, 6, 90)).astype(np.float32)}
        ones = np.ones((250, 1))
        store.add(WindowSet(x, ones.astype(bool), ones.astype(np.float32), rng.integers(0, 2, 250)))
        assert store.commit(), "5 000 windows of a page each are 20 MB, the values 11 MB"
    stock = store.snapshot()
    assert stock.lost == 0
    assert sum(stock.dropped.values()) + stock.total == 5000
    assert store.path.stat().st_size <= evict_above(budget) + 1024 * 1024
    assert stock.total > 1000
    store.close()


@pytest.mark.parametrize(
    "damage",
    ["UPDATE windows SET x = x'00'", "UPDATE windows SET present = x'010101'", "UPDATE windows SET y = 900"],
)
def test_rows_that_are_not_what_was_written_begin_a_new_file(tmp_path, damage):
    store = make(tmp_path)
    store.add(windows([0, 1, 2]))
    store.close()
    with sqlite3.connect(store.path) as db:
        db.execute(damage)
    db.close()
    again = make(tmp_path)
    assert len(again.recent(10)) == 0
    again.add(windows([1]))
    assert again.commit()
    assert len(again.recent(10)) == 1
    again.close()
    assert len(list(tmp_path.glob("*.corrupt-1"))) == 1


def test_damaged_pages_found_while_reading_begin_a_new_file(tmp_path):
    store = make(tmp_path)
    store.add(windows([0, 1, 2] * 200))
    store.close()
    data = bytearray(store.path.read_bytes())
    for page in range(8, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    store.path.write_bytes(data)
    again = make(tmp_path)
    again.recent(1000)
    again.add(windows([1]))
    assert again.commit()
    again.close()


def test_a_second_damaged_file_replaces_the_first(tmp_path):
    for _ in range(3):
        store = make(tmp_path)
        store.close()
        store.path.write_bytes(b"this is no database" * 500)
    make(tmp_path).close()
    assert len(list(tmp_path.glob("*.corrupt-*"))) == 1, "damaged files do not fill the disk"


def test_taking_windows_never_waits_for_the_disk(tmp_path):
    store = make(tmp_path)
    done = threading.Event()

    def work():
        store.add(windows([0, 1], task=TASK))
        store.snapshot()
        done.set()

    with store._disk:  # as a commit does that takes long
        threading.Thread(target=work).start()
        assert done.wait(5)
    store.close()
