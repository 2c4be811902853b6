"""A label by a person under SIGKILL, power cuts and full disks: what was answered is there, nothing else."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_agent.windows import window_labels as labels
from edge_agent.windows.store import WindowStore
from lichen_lab.benchmarks.fault_injection.harness import disks
from protocol.errors import Transient
from runtime.storage.disk import DISK, Disk
from tests.unit.edge_agent.windows.test_agent_store import TASK, make, windows

ROOT = Path(__file__).parents[2]
STEPS = ("before the transaction", "before the commit", "after the commit", "after the answer")
needs_disk = pytest.mark.skipif(
    bool(disks.why_unavailable()), reason=f"SKIPPED LOUDLY: {disks.why_unavailable()}"
)


class KillingAt(Disk):
    """SIGKILL to its own process at one step of the next commit."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self._step = step

    def reach(self, step: str) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    def before_commit(self, path: Path) -> None:
        self.reach("before the commit")
        super().before_commit(path)

    def after_commit(self, path: Path, *, synced: bool = True) -> None:
        super().after_commit(path, synced=synced)
        self.reach("after the commit")


def killed(folder: Path, step: str, change: str, name: str) -> bool:
    """Label or undo in a process that dies at ``step``; whether it had answered."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            store, disk = WindowStore(folder, TASK, 10_000_000), KillingAt(step)
            DISK.set(disk)
            disk.reach("before the transaction")
            labels.undo(store) if change == "undo" else labels.label(store, name, 1, 1.0, "test")
            os.write(writes, b"answered")
            disk.reach("after the answer")
        finally:
            os._exit(1)
    os.close(writes)
    with os.fdopen(reads, "rb") as answers:
        answered = answers.read() == b"answered"
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return answered


def classes(folder: Path) -> list[int]:
    store = make(folder)
    found = store.recent(1000, labelled=False).y_B.tolist()
    assert store.read(lambda db, _task: db.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
    store.close()
    return found


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("change", ["label", "undo"])
def test_kill_nine_at_each_step_of_a_label(tmp_path: Path, change: str, step: str) -> None:
    store = make(tmp_path)
    store.add(windows([-1, -1, 2]))
    name = labels.newest(store, 9)[-1].name
    if change == "undo":
        labels.label(store, name, 1, 1.0, "test")
    store.close()
    committed = step in STEPS[2:]
    assert killed(tmp_path, step, change, name) == (step == STEPS[3])
    labelled = committed == (change == "label")
    assert classes(tmp_path) == [1 if labelled else -1, -1, 2]
    store = make(tmp_path)
    assert store.snapshot().labelled == 1 + labelled
    if labelled:
        assert labels.undo(store).window == name, "the undo survives with the label"
    store.close()
    assert not list(tmp_path.glob("*.corrupt*"))


@pytest.mark.long
def test_kill_nine_at_random_moments_loses_no_label_that_was_answered(tmp_path: Path) -> None:
    dice = random.Random(11)
    store = make(tmp_path)
    store.add(windows([-1] * 60))
    names = [one.name for one in labels.newest(store, 60)]
    store.close()
    answered: set[str] = set()
    for turn in range(4):
        mine = names[turn * 15 : (turn + 1) * 15]
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.processes.label_child", str(tmp_path), *mine],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        with child:
            said = [child.stdout.readline() for _ in range(dice.randrange(2, 8))]
            time.sleep(dice.random() * 0.01)
            child.kill()
            said += child.stdout.read().splitlines(keepends=True)
        now = {line.decode().strip() for line in said if line.endswith(b"\n")}
        answered |= now
        store = make(tmp_path)
        found = {one.name: one.row.y for one in labels.newest(store, 100)}
        store.close()
        there = {name for name, y in found.items() if y == 1}
        assert answered <= there
        assert len(there - answered) <= 1, "one may be written and not answered"
        answered = there
    assert len(answered) > 8
    assert not list(tmp_path.glob("*.corrupt*"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[disks.FaultyDisk]:
    one = disks.FaultyDisk(tmp_path / "disk.img", tmp_path / "disk")
    yield one
    one.close()


@needs_disk
def test_a_power_cut_after_the_answer_leaves_the_label_and_its_window(disk: disks.FaultyDisk) -> None:
    """The file system is aborted, and what was not synced is gone: only the label syncs its window."""
    folder = disk.folder / "store"
    store = make(folder)
    store.add(windows([-1, -1]), np.array([5.0, 6.0]))
    name = labels.newest(store, 9)[-1].name
    labels.label(store, name, 2, 1.0, "test")
    store.add(windows([0], seed=3))  # committed, and not synced
    store.commit()
    disk.fail()
    with pytest.raises(Transient, match=r"disk|written"):
        labels.label(store, name, 1, 2.0, "test")
    store._disconnect()
    disk.repair()
    store = make(folder)
    found = {one.name: (one.row.y, one.row.start) for one in labels.newest(store, 9)}
    assert found[name] == (2, 5.0)
    assert labels.undo(store).window == name
    store.close()


@needs_disk
def test_a_full_disk_refuses_the_label_in_words_and_takes_it_later(disk: disks.FaultyDisk) -> None:
    folder = disk.folder / "store"
    store = make(folder)
    store.add(windows([-1] * 40))
    names = [one.name for one in labels.newest(store, 40)]
    labels.label(store, names[0], 2, 1.0, "test")
    store.close()  # empties the WAL, so that the next label needs room
    disk.fill()
    store = make(folder)
    refusals = 0
    for name in names[1:]:
        try:
            labels.label(store, name, 1, 1.0, "test")
        except Transient as error:
            refusals += 1
            assert "full" in str(error)  # noqa: PT017 - a count of refusals
    assert refusals
    before = store.snapshot().labelled
    disk.free()
    for name in names[1:]:
        labels.label(store, name, 0, 2.0, "test")
    assert store.snapshot().labelled == len(names)
    assert before < len(names)
    store.close()
    assert sorted(classes(folder)) == [0] * 39 + [2]
    assert not list(folder.glob("*.corrupt*"))
