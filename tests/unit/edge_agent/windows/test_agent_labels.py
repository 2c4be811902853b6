"""Labels by a person: given to the window that was shown, durable, undone until a round has read them."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from edge_agent.windows import window_labels as labels
from edge_agent.windows.counting_store import CountingStore
from edge_agent.windows.observed_profile import is_readable
from edge_agent.windows.quality.meter import QualityMeter
from edge_agent.windows.store import WindowStore
from edge_agent.windows.workspace import WindowWorkspace
from models.contract import Profile
from models.data.streams.windows import Windower
from protocol.errors import Refused, Transient
from tests.unit.edge_agent.windows.test_agent_store import TASK, WINDOW_BYTES, make, windows


def classes(store: WindowStore) -> list[int]:
    return store.recent(100, labelled=False).y_B.tolist()


def names(store: WindowStore) -> list[str]:
    """Of the stored windows, oldest first."""
    return [one.name for one in labels.newest(store, 100)][::-1]


def give(store: WindowStore, name: str, y: int, by: str = "test") -> labels.GivenLabel:
    return labels.label(store, name, y, 1000.0, by)


def test_a_label_counts_at_once_and_after_a_restart(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1, 0, -1]), np.array([10.0, 20.0, 30.0]))
    first, _, third = names(store)
    assert give(store, third, 2) == labels.GivenLabel(third, 2, -1, 1000.0, "test")
    assert classes(store) == [-1, 0, 2]
    snapshot = store.snapshot()
    assert snapshot.labelled == 2
    assert snapshot.counts["acc"] == (1, 0, 1)
    store.close()
    again = make(tmp_path)
    assert classes(again) == [-1, 0, 2]
    assert again.snapshot().counts == snapshot.counts
    assert [one.row.start for one in labels.newest(again, 9)] == [30.0, 20.0, 10.0]
    assert labels.find(again, first).row.start == 10.0
    again.close()


def test_undo_takes_back_one_label_after_the_other(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1, 0]))
    one, two = names(store)
    give(store, one, 1)
    give(store, two, 2)
    give(store, two, 1)
    assert classes(store) == [1, 1]
    assert labels.undo(store).y == 2
    assert labels.undo(store, two).y == 0
    store.close()
    store = make(tmp_path)
    assert labels.undo(store).window == one, "also after a restart"
    assert classes(store) == [-1, 0]
    assert store.snapshot().labelled == 1
    with pytest.raises(Refused, match="no label to undo"):
        labels.undo(store)
    store.close()


def test_undo_of_another_persons_label_is_refused_and_names_it(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1, -1]))
    mine, theirs = names(store)
    give(store, mine, 1)
    give(store, theirs, 2, "home assistant")
    with pytest.raises(Refused, match=rf"that of window {theirs} \(home assistant\), not of {mine}"):
        labels.undo(store, mine)
    assert classes(store) == [1, 2]
    store.close()


def workspace(store: WindowStore | CountingStore) -> WindowWorkspace:
    return WindowWorkspace(
        TASK, TASK.modality_names, Windower(TASK, TASK.modality_names, 1.0), QualityMeter(TASK), store
    )


def test_a_round_takes_the_labels_of_then_and_ends_their_undo(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1, -1, -1]))
    one, two, _ = names(store)
    give(store, one, 1)
    give(store, two, 2)
    labels.undo(store)
    _, data = workspace(store).load(10)
    assert data.y_B.tolist() == [1]
    with pytest.raises(Refused, match="no label to undo"):
        labels.undo(store)
    give(store, two, 0)
    assert labels.undo(store).window == two, "a label after the round can be undone"
    store.close()
    store = make(tmp_path)
    with pytest.raises(Refused, match="no label to undo"):
        labels.undo(store)
    store.close()


def test_a_window_that_was_dropped_gets_no_label_and_neither_does_its_successor(tmp_path):
    store = make(tmp_path, 60 * WINDOW_BYTES)
    store.add(windows([-1] * 10))
    old = names(store)
    give(store, old[1], 1)
    for seed in range(1, 12):
        store.add(windows([1] * 20 + [-1] * 20, seed))
        store.commit()
    for name in old[:2]:
        with pytest.raises(Refused, match=f"window {name} is not stored any more.*no window was labelled"):
            give(store, name, 2)
    with pytest.raises(Refused, match="no label to undo"):
        labels.undo(store)
    assert store.snapshot().counts["acc"][2] == 0
    store.close()


def test_a_row_number_that_is_used_again_is_another_window(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1, -1]))
    shown = names(store)
    store.close()
    store.path.unlink()
    store = make(tmp_path)
    store.add(windows([-1, -1], seed=1))
    assert [name.partition("-")[0] for name in names(store)] == [name.partition("-")[0] for name in shown]
    for name in shown:
        with pytest.raises(Refused, match="not stored any more"):
            give(store, name, 1)
    assert classes(store) == [-1, -1]
    store.close()


@pytest.mark.parametrize(
    "name", ["", "7", "1-", "-1-00", "1-zz", "0-0123456789abcdef", "9" * 400, "1; DROP TABLE x"]
)
def test_what_is_no_name_of_a_window_is_refused(tmp_path, name):
    store = make(tmp_path)
    store.add(windows([-1]))
    with pytest.raises(Refused, match="is no name of a window"):
        give(store, name, 1)
    store.close()


def test_a_disk_that_does_not_take_the_label_changes_nothing(tmp_path, monkeypatch):
    store = make(tmp_path)
    store.add(windows([-1, -1]))
    (one, two), before = names(store), store.snapshot()
    give(store, two, 1)
    with monkeypatch.context() as patch:
        patch.setattr(labels, "_move", refuse)
        with pytest.raises(Transient, match="disk"):
            give(store, one, 2)
        with pytest.raises(Transient, match="disk"):
            labels.undo(store)
    assert classes(store) == [-1, 1]
    assert store.snapshot().labelled == before.labelled + 1
    assert give(store, one, 2).was == -1
    store.close()


def refuse(*_: object) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def test_a_store_that_is_closed_refuses(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1]))
    (name,) = names(store)
    store.close()
    with pytest.raises(Transient, match="closed"):
        give(store, name, 1)


def test_a_device_that_stores_no_windows_says_so(tmp_path):
    with pytest.raises(Refused, match="stores no windows \\(it only observes\\)"):
        labels.require_store(CountingStore(tmp_path / "none", TASK, "it only observes"))


def test_a_file_of_a_release_without_labels_takes_them(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1, 0]))
    store.close()
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("DROP TABLE given")
        db.execute("ALTER TABLE windows DROP COLUMN start")
    store = make(tmp_path)
    assert [one.row.start for one in labels.newest(store, 9)] == [None, None]
    give(store, names(store)[0], 2)
    assert classes(store) == [2, 0]
    store.close()


def test_undo_is_bounded(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1]))
    (name,) = names(store)
    for turn in range(labels.MAX_UNDO + 20):
        give(store, name, turn % 3)
    count = store.read(lambda db, _task: db.execute("SELECT count(*) FROM given").fetchone()[0])
    assert count == labels.MAX_UNDO
    store.close()


def test_only_windows_with_an_input_are_read_for_a_round(tmp_path):
    store = make(tmp_path)
    store.add(windows([-1, -1]))
    give(store, names(store)[0], 1)
    found = store.recent(9, wanted=is_readable(TASK, Profile(("acc",))))
    assert found.y_B.tolist() == [1, -1]
    store.close()
