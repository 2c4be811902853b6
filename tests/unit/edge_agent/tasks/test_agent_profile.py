"""Stored labels of further targets; and the profile that stored windows give a device."""

import sqlite3

import numpy as np
import pytest

from edge_agent.config.agent import LearnSettings
from edge_agent.tasks.profile import permitted_profile, unknown_modalities
from edge_agent.windows.observed_profile import (
    collected_modalities,
    follows_windows,
    is_useful,
    observed_profile,
    profile_of_windows,
    restrict_to_profile,
)
from edge_agent.windows.rows import RowKind, labelled_for, rows_of
from edge_agent.windows.store import WindowStore
from edge_agent.windows.store_file import grid_digest
from edge_agent.windows.workspace import WindowWorkspace, material
from models.contract import Profile, WindowSet
from models.data.labels.targets import key_of
from models.data.window_set import check, concat, select
from protocol.errors import Transient
from protocol.tasks.task import Modality, Target, Task
from tests.support.agent.data import toy_task

NAN = float("nan")
ACC = Modality(name="acc", channels=3, rate_hz=50)
GYR = Modality(name="gyr", channels=2, rate_hz=25)
CAM = Modality(name="cam", channels=1, rate_hz=10, input=False)
SPEED = Target(name="speed", kind="regression")
SIDE = Target(name="side", labels=("left", "right"))
PICTURE = Target(name="picture", kind="generation", modality="cam")
TASK = toy_task(method="disentafl", modalities=(ACC, GYR, CAM), targets=(SPEED, SIDE, PICTURE))
QQR = toy_task()
FREE = LearnSettings()
OLD_SCHEMA = """
CREATE TABLE windows (
  id INTEGER PRIMARY KEY, y INTEGER NOT NULL, present BLOB NOT NULL, quality BLOB NOT NULL, x BLOB NOT NULL);
CREATE INDEX by_class ON windows (y, id);
CREATE TABLE dropped (y INTEGER PRIMARY KEY, n INTEGER NOT NULL);
"""
"""Of the release that knew no further targets."""


def windows(
    has: str, label: int = -1, *, count: int = 1, task: Task = TASK, seed: int = 0, **targets: float
) -> WindowSet:
    """Windows in which these modalities are present, with these labels."""
    rng = np.random.default_rng(seed)
    present_BM = np.repeat([[m.name in has.split() for m in task.modalities]], count, axis=0)
    x = {
        m.name: (rng.normal(size=(count, m.channels, task.samples(m.name))) * (m.name in has.split())).astype(
            np.float32
        )
        for m in task.modalities
    }
    quality_BM = np.where(present_BM, np.float32(0.5), np.float32(1))
    given = {name: np.full(count, value, np.float32) for name, value in targets.items()}
    return WindowSet(x, present_BM, quality_BM, np.full(count, label, np.int64), given)


def stored(folder, *sets: WindowSet, task: Task = TASK, budget: int = 10_000_000) -> WindowStore:
    store = WindowStore(folder, task, budget)
    for one in sets:
        store.add(one)
    assert store.commit()
    return store


def work_of(
    store: WindowStore, task: Task = TASK, learn: LearnSettings = FREE, delivers: str = "acc gyr cam"
):
    may = permitted_profile(task, delivers.split(), learn)
    return WindowWorkspace(task, may.modalities, None, None, store, targets=may.targets)


def test_labels_of_all_targets_come_out_of_the_store_as_they_went_in(tmp_path):
    sets = [
        windows("acc", 1, speed=1.5),
        windows("acc gyr", speed=float(np.float32(0.1)), side=1.0, seed=1),
        windows("gyr", seed=2),
        windows("acc cam", 2, side=NAN, seed=3),
    ]
    store = stored(tmp_path, *sets)
    store.add(windows("acc", speed=7.0))
    for _ in range(2):
        found = store.recent(10, labelled=False)
        check(found, TASK)
        np.testing.assert_array_equal(found.targets["speed"], np.array([1.5, 0.1, NAN, NAN, 7.0], np.float32))
        np.testing.assert_array_equal(found.targets["side"], [NAN, 1.0, NAN, NAN, NAN])
        assert found.y_B.tolist() == [1, -1, -1, 2, -1]
        np.testing.assert_array_equal(found.x["acc"][:4], np.concatenate([s.x["acc"] for s in sets]))
        assert store.recent(10).y_B.tolist() == [1, 2]
        store.close()
        store = WindowStore(tmp_path, TASK, 10_000_000)
    store.close()


def test_the_store_of_the_release_before_opens_with_its_windows_and_no_further_labels(tmp_path):
    given = windows("acc gyr", 1, count=5, task=QQR)
    path = tmp_path / f"windows-{grid_digest(QQR)}.sqlite3"
    db = sqlite3.connect(path)
    db.executescript(OLD_SCHEMA)
    for b in range(5):
        x = b"".join(given.x[name][b].tobytes() for name in ("acc", "gyr"))
        row = (b % 4 - 1, given.present_BM[b].tobytes(), given.quality_BM[b].tobytes(), x)
        db.execute("INSERT INTO windows (y, present, quality, x) VALUES (?, ?, ?, ?)", row)
    db.execute("INSERT INTO dropped VALUES (2, 7)")
    db.commit()
    db.close()
    more = toy_task(method="disentafl", targets=(SPEED,))
    store = WindowStore(tmp_path, more, 10_000_000)
    assert store.path == path, "further targets leave the grid as it was"
    assert not list(tmp_path.glob("*.corrupt*"))
    found = store.recent(10, labelled=False)
    assert found.y_B.tolist() == [-1, 0, 1, 2, -1]
    np.testing.assert_array_equal(found.x["acc"], given.x["acc"])
    assert np.isnan(found.targets["speed"]).all()
    assert store.snapshot().dropped == {2: 7}
    store.add(windows("acc", task=more, speed=2.0))
    assert store.commit()
    assert store.recent(10, labelled=False).targets["speed"][-1] == 2
    store.close()
    db = sqlite3.connect(path)  # and that release still reads and writes it
    rows = db.execute("SELECT y, present, quality, x FROM windows WHERE y >= 0").fetchall()
    assert len(rows) == 3
    db.execute("INSERT INTO windows (y, present, quality, x) VALUES (?, ?, ?, ?)", rows[0])
    db.commit()
    db.close()
    again = WindowStore(tmp_path, more, 10_000_000)
    assert again.snapshot().total == 7
    again.close()


@pytest.mark.parametrize(
    ("column", "wrong"),
    [*(("targets", text) for text in ("{", "[1]", '{"speed": "fast"}', "7")), ("present", b"\1"), ("y", 3)],
)
def test_a_damaged_row_is_a_damaged_file_and_not_a_fault(tmp_path, column, wrong):
    store = stored(tmp_path, windows("acc", 1, speed=1.0))
    store._db.execute(f"UPDATE windows SET {column} = ?", (wrong,))  # noqa: S608 - our words
    store._db.commit()
    store.close()
    again = WindowStore(tmp_path, TASK, 10_000_000)
    assert again.snapshot().total == 0
    again.add(windows("acc", 1, speed=1.0))
    assert again.commit()
    again.close()
    assert len(list(tmp_path.glob("*.corrupt-1"))) == 1


def test_labels_of_a_target_that_has_changed_its_meaning_are_not_read(tmp_path):
    store = stored(tmp_path, windows("acc", speed=3.0, side=1.0))
    turned = Target(name="side", labels=("up", "down"))
    assert key_of(turned) != key_of(SIDE)
    assert key_of(SPEED.model_copy(update={"offset": 4.0, "scale": 2.0})) == key_of(SPEED)
    other = TASK.model_copy(update={"targets": (SPEED, turned)})
    store.use(other)
    found = store.recent(10, labelled=False)
    assert found.targets["speed"][0] == 3
    assert np.isnan(found.targets["side"][0])
    assert [kind.labelled for kind in store.snapshot().kinds] == [("speed",)]
    store.use(TASK)
    assert store.recent(10, labelled=False).targets["side"][0] == 1, "nothing was lost"
    assert [set(kind.labelled) for kind in store.snapshot().kinds] == [{"speed", "side"}]
    store.close()


def test_windows_without_any_label_go_before_those_of_further_targets(tmp_path):
    size = 4 * 3 * 128
    store = stored(tmp_path, windows("acc", speed=1.0, count=6), budget=40 * size)
    for k in range(10):
        store.add(windows("acc", count=10, seed=k))
        assert store.commit()
    stock = store.snapshot()
    labelled = {kind: n for kind, n in stock.kinds.items() if kind.labelled}
    assert list(labelled.values()) == [6], "they are few, and stay"
    assert set(stock.dropped) == {-1}
    assert stock.total == sum(stock.kinds.values()) == 106 - stock.dropped[-1]
    for k in range(10):
        store.add(windows("acc", count=10, speed=1.0, seed=k))
        assert store.commit()
    assert set(store.snapshot().dropped) == {-1, -2}
    total = store.snapshot()
    store.close()
    again = WindowStore(tmp_path, TASK, 40 * size)
    assert again.snapshot().kinds == total.kinds
    assert again.snapshot().dropped == total.dropped
    again.close()


def test_what_a_device_may_read_and_learn():
    everything = Profile(("acc", "gyr"), ("label", "speed", "side", "picture"))
    assert permitted_profile(TASK, ["cam", "gyr", "acc"], FREE) == everything
    assert collected_modalities(TASK, ["acc", "gyr", "cam"], everything) == ("acc", "gyr", "cam")
    blind = permitted_profile(TASK, ["acc"], FREE)
    assert blind == Profile(("acc",), ("label", "speed", "side")), "no picture without a camera"
    modest = LearnSettings(inputs=("gyr",), targets=("picture", "speed"))
    may = permitted_profile(TASK, ["acc", "gyr", "cam"], modest)
    assert may == Profile(("gyr",), ("speed", "picture"))
    assert collected_modalities(TASK, ["acc", "gyr", "cam"], may) == ("gyr", "cam"), "nobody needs acc"
    silent = LearnSettings(targets=("label",))
    assert collected_modalities(TASK, ["acc", "cam"], permitted_profile(TASK, ["acc", "cam"], silent)) == (
        "acc",
    )
    assert permitted_profile(QQR, ["acc", "gyr"], FREE) == Profile(("acc", "gyr"))


def test_wishes_that_the_task_does_not_know_are_said():
    said = unknown_modalities(TASK, LearnSettings(inputs=("acc", "cam"), targets=("heart", "label")))
    assert said == [
        "learn.inputs: cam: unknown to task 'toy' (acc, gyr)",
        "learn.targets: heart: unknown to task 'toy' (label, speed, side, picture)",
    ]
    assert not unknown_modalities(TASK, FREE)


@pytest.mark.parametrize(
    ("sets", "expected", "count"),
    [
        ([], Profile((), ()), 0),
        ([windows("acc", 1, count=3)], Profile(("acc",)), 3),
        ([windows("acc")], Profile(("acc",), ("label", "speed", "side", "picture")), 0),
        ([windows("cam", 1)], Profile((), ()), 0),
        ([windows("acc cam")], Profile(("acc",), ("picture",)), 1),
        ([windows("gyr", speed=1.0), windows("acc")], Profile(("gyr",), ("speed",)), 1),
        (
            [windows("gyr", speed=1.0), windows("acc", side=0.0), windows("acc gyr")],
            Profile(("acc", "gyr"), ("speed", "side")),
            2,
        ),
    ],
)
def test_the_profile_is_what_the_windows_show(tmp_path, sets, expected, count):
    """By what the store counts, and by the windows that are trained on: the same."""
    store = stored(tmp_path, *sets)
    work = work_of(store)
    assert work.current_profile(store.snapshot()) == (expected, count)
    if count:
        profile, found = material(work, 100, labelled=True)
        assert profile == expected
        assert len(found) == count
    else:
        with pytest.raises(Transient, match="no window has both an input"):
            material(work, 100, labelled=True)
    store.close()


def test_a_device_that_only_observes_is_served_all_that_it_may_predict(tmp_path):
    """However few labels it has; a device of the field has none."""
    store = stored(tmp_path, windows("gyr cam"), windows("gyr", 1))
    may = permitted_profile(TASK, ["acc", "gyr", "cam"], LearnSettings(targets=("side", "picture")))
    work = WindowWorkspace(TASK, may.modalities, None, None, store, targets=may.targets, by=None)
    assert work.current_profile(store.snapshot()) == (Profile(("gyr",), ("side", "picture")), 1)
    store.close()


def test_wishes_narrow_what_is_trained_on(tmp_path):
    sets = [
        windows("acc gyr cam", 1, speed=1.0),
        windows("acc gyr", 2, seed=1),
        windows("acc", speed=2.0, seed=2),
        windows("gyr", speed=3.0, seed=3),
    ]
    store = stored(tmp_path, *sets)
    work = work_of(store, learn=LearnSettings(inputs=("gyr",), targets=("speed",)))
    assert work.current_profile(store.snapshot()) == (Profile(("gyr",), ("speed",)), 2)
    profile, found = material(work, 100, labelled=True)
    assert profile == Profile(("gyr",), ("speed",))
    assert found.present_BM.tolist() == [[False, True, False]] * 2
    assert not found.x["acc"].any()
    assert not found.x["cam"].any()
    assert found.y_B.tolist() == [-1, -1], "not its business"
    assert found.targets["speed"].tolist() == [1, 3]
    assert set(found.targets) == {"speed"}
    assert (found.quality_BM[~found.present_BM] == 1).all()
    check(found, TASK)
    store.close()


def test_only_the_newest_windows_count_in_training(tmp_path):
    store = stored(tmp_path, windows("gyr", 1, count=5), windows("acc", count=50), windows("acc", 2, count=5))
    profile, found = material(work_of(store), 6, labelled=True)
    assert profile == Profile(("acc", "gyr"))
    assert found.present_BM[:, 1].tolist() == [True] + [False] * 5
    assert material(work_of(store), 5, labelled=True)[0] == Profile(("acc",))
    store.close()


def test_a_method_that_is_not_routed_keeps_its_windows_to_the_bit(tmp_path):
    assert not follows_windows(QQR)
    assert follows_windows(toy_task(method="disentafl"))
    given = concat([windows("acc gyr", 1, task=QQR), windows("acc", task=QQR), windows("gyr", 0, task=QQR)])
    store = stored(tmp_path, given, task=QQR)
    work = work_of(store, QQR, delivers="acc gyr")
    assert work.current_profile(store.snapshot()) == (Profile(("acc", "gyr")), 2)
    profile, found = material(work, 100, labelled=True)
    assert profile == Profile(("acc", "gyr"))
    wanted = select(given, given.y_B >= 0)
    for name, x_BCT in wanted.x.items():
        np.testing.assert_array_equal(found.x[name], x_BCT)
    np.testing.assert_array_equal(found.present_BM, wanted.present_BM)
    np.testing.assert_array_equal(found.quality_BM, wanted.quality_BM)
    np.testing.assert_array_equal(found.y_B, wanted.y_B)
    assert not found.targets
    assert len(material(work, 100, labelled=False)[1]) == 3
    empty = work_of(stored(tmp_path / "new", task=QQR), QQR, delivers="acc gyr")
    assert empty.current_profile(empty.store.snapshot())[0] == Profile(("acc", "gyr")), (
        "before the first window"
    )
    assert len(material(empty, 100, labelled=True)[1]) == 0
    empty.store.close()
    store.close()


def test_profiles_agree_however_they_are_found():
    """By the kinds of windows, and by the windows: over every mix of modalities and labels."""
    may = permitted_profile(TASK, ["acc", "gyr", "cam"], FREE)
    useful = is_useful(TASK, may)
    rng = np.random.default_rng(0)
    for _ in range(50):
        sets = []
        for _ in range(int(rng.integers(1, 4))):
            has = " ".join(name for name in ("acc", "gyr", "cam") if rng.random() < 0.4)
            targets = {name: 1.0 for name in ("speed", "side") if rng.random() < 0.3}
            sets.append(windows(has, int(rng.integers(-1, 2)), **targets))
        given = concat(sets)
        keys = {key_of(target): target.name for target in (SPEED, SIDE)}
        kinds = [RowKind(row.present, labelled_for(row.y, row.targets, keys)) for row in rows_of(TASK, given)]
        profile, count = observed_profile(TASK, may, {kind: kinds.count(kind) for kind in kinds})
        use_B = np.array([useful(kind) for kind in kinds])
        assert count == use_B.sum()
        if count:
            chosen = select(given, use_B)
            assert profile_of_windows(TASK, may, chosen) == profile
            check(restrict_to_profile(TASK, profile, chosen), TASK)
