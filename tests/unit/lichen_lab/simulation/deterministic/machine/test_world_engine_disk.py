import errno
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage.database import Database
from lichen_lab.simulation.deterministic.machine.disk import SimDisk, memory_folder
from lichen_lab.simulation.deterministic.machine.process_life import PowerCut, ProcessLife
from protocol.errors import Misconfigured, Refused, Transient
from protocol.frames.chunks import chunk_at
from protocol.frames.frame import digest
from protocol.messages import BlobRef
from runtime.storage.blob_store import BlobStore
from runtime.storage.disk import DISK, Disk
from runtime.storage.files import put_in_place, remove_tree, rename, sync_folder, write_atomic, write_in_place
from runtime.storage.spool import Spool

_MOST = 400


@pytest.fixture
def memory():
    with memory_folder() as folder:
        yield Path(folder)


class Machine:
    """A disk whose life ends at a moment; :meth:`do` says whether it outlived what was done."""

    def __init__(self, memory: Path, seed: int, crash_at: int = 0, *, power: bool = True, **options):
        self.before, self.after = memory / f"{seed}-{crash_at}-1", memory / f"{seed}-{crash_at}-2"
        self.life = ProcessLife("machine", crash_at=crash_at, power=power)
        self.disk = SimDisk(self.before, seed, life=self.life, **options)
        self.life.on_end.append(lambda _: self.disk.freeze(self.after, power=self.life.power))

    def do(self, action) -> bool:
        token = DISK.set(self.disk)
        try:
            action(self.before)
        except PowerCut:
            return False
        finally:
            DISK.reset(token)
        return True

    def cut(self) -> Path:
        self.life.end("the power is cut")
        return self.after


def every_moment(memory: Path, action, seeds=range(6), **options):
    """Machines that died in ``action``, one for each moment and seed; and, last, those that did not."""
    for seed in seeds:
        for moment in range(1, _MOST):
            machine = Machine(memory, seed, moment, **options)
            survived = machine.do(lambda root, m=machine: action(root, m))
            if survived:
                machine.cut()
            yield machine, survived
            if survived:
                break
        else:
            pytest.fail("the action has no end")


def _three_writes(root: Path, machine: Machine) -> None:
    machine.done = 0
    for n in (1, 2, 3):
        write_atomic(root / "folder" / "new" / "file", b"%d" % n * 100)
        machine.done = n


def test_an_atomic_write_is_whole_at_every_moment_and_stays_once_it_has_returned(memory):
    seen: Counter[tuple[int, int]] = Counter()
    for machine, _ in every_moment(memory, _three_writes, seeds=range(20)):
        file = machine.after / "folder" / "new" / "file"
        data = file.read_bytes() if file.exists() else b""
        versions = [b"", b"1" * 100, b"2" * 100, b"3" * 100]
        assert data in versions
        found = versions.index(data)
        assert found in (machine.done, machine.done + 1)
        seen[machine.done, found] += 1
    # what had not returned was both lost and kept; both are allowed, and both must be tried
    assert {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3)} <= set(seen)


def test_a_disk_that_does_not_sync_is_found_out(memory):
    broken = 0
    for machine, _ in every_moment(memory, _three_writes, honours_sync=False):
        file = machine.after / "folder" / "new" / "file"
        data = file.read_bytes() if file.exists() else b""
        broken += machine.done > 0 and data != b"%d" % machine.done * 100
    assert broken > 5


def test_what_was_not_synced_is_lost_torn_or_kept(memory):
    seen = set()
    for seed in range(40):
        machine = Machine(memory, seed)
        machine.do(
            lambda root: (write_atomic(root / "f", b"old" * 50), write_in_place(root / "f", b"new" * 50))
        )
        data = (machine.cut() / "f").read_bytes()
        seen.add({b"old" * 50: "lost", b"new" * 50: "kept"}.get(data, "torn"))
    assert seen == {"lost", "torn", "kept"}


def test_a_rename_is_durable_only_with_its_folder(memory):
    def move(root: Path, *, synced: bool) -> None:
        write_atomic(root / "a", b"a")
        write_atomic(root / "b", b"b")
        rename(root / "a", root / "b")
        if synced:
            sync_folder(root)

    seen = Counter()
    for seed in range(30):
        for synced in (True, False):
            machine = Machine(memory, 100 * seed + synced)
            machine.do(lambda root, synced=synced: move(root, synced=synced))
            after = machine.cut()
            names = "".join(sorted(p.name for p in after.iterdir()))
            assert (after / "b").read_bytes() == (b"a" if names == "b" else b"b")
            seen[synced, names] += 1
    assert set(seen) == {(True, "b"), (False, "b"), (False, "ab")}


def test_files_of_a_renamed_folder_stay_once_the_one_above_is_synced(memory):
    def action(root):
        write_atomic(root / "new.part" / "file", b"whole")
        rename(root / "new.part", root / "new")
        sync_folder(root)

    for seed in range(20):
        machine = Machine(memory, seed)
        assert machine.do(action)
        assert (machine.cut() / "new" / "file").read_bytes() == b"whole"


def test_a_removed_tree_may_come_back_in_part(memory):
    seen = set()
    for seed in range(40):
        machine = Machine(memory, seed)

        def fill_and_remove(root: Path) -> None:
            for n in range(3):
                write_atomic(root / "tree" / str(n), b"x")
            remove_tree(root / "tree")

        machine.do(fill_and_remove)
        tree = machine.cut() / "tree"
        seen.add(len(list(tree.iterdir())) if tree.exists() else 0)
    assert seen == {0, 1, 2, 3}


def test_a_kill_keeps_what_the_system_has(memory):
    machine = Machine(memory, 1, power=False)
    machine.do(lambda root: write_in_place(root / "f", b"x" * 1000))
    assert (machine.cut() / "f").read_bytes() == b"x" * 1000


def test_a_file_written_beside_the_seam_is_not_trusted(memory):
    seen = set()
    for seed in range(40):
        machine = Machine(memory, seed)
        machine.do(lambda root: (root / "status.json").write_bytes(b"{}" * 100))
        seen.add(len((machine.cut() / "status.json").read_bytes()) == 200)
    assert seen == {True, False}


@pytest.mark.parametrize("synced", [True, False])
def test_a_file_written_beside_the_seam_is_whole_once_it_is_put_in_place(memory, synced):
    def copy(root: Path, machine: Machine) -> None:
        machine.done = False
        (root / "copy.part").write_bytes(b"x" * 500)
        if synced:
            put_in_place(root / "copy.part", root / "copy")
        else:
            rename(root / "copy.part", root / "copy")
            sync_folder(root)
        machine.done = True

    lengths = set()
    for machine, _ in every_moment(memory, copy, seeds=range(20)):
        file = machine.after / "copy"
        if machine.done or file.exists():
            lengths.add(file.stat().st_size)
    assert (lengths == {500}) is synced


def test_the_dead_change_nothing_for_the_living(memory):
    machine = Machine(memory, 1)
    machine.do(lambda root: write_atomic(root / "f", b"before"))
    after = machine.cut()
    assert machine.do(lambda root: write_atomic(root / "f", b"a ghost"))
    assert (after / "f").read_bytes() == b"before"


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, Transient), (errno.EROFS, Misconfigured), (errno.EIO, Transient)]
)
def test_a_disk_in_trouble_refuses_and_leaves_what_was(memory, number, kind):
    machine = Machine(memory, 1)
    machine.do(lambda root: write_atomic(root / "f", b"before"))
    machine.disk.trouble = number
    with pytest.raises(kind):
        machine.do(lambda root: write_atomic(root / "f", b"after"))
    assert (machine.before / "f").read_bytes() == b"before"
    machine.disk.trouble = 0
    assert machine.do(lambda root: write_atomic(root / "f", b"after"))
    assert (machine.cut() / "f").read_bytes() == b"after"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_in_trouble_takes_no_commit(memory, number):
    machine = Machine(memory, 1)
    spool = Spool(machine.before / "spool.sqlite3", 1 << 20)
    machine.disk.trouble = number
    with pytest.raises(Transient):
        machine.do(lambda _: spool.put(task="t", round_=1, digest="d", payload=b"x", carry=None))
    machine.disk.trouble = 0
    assert spool.pending() == []
    spool.close()


def test_a_file_is_durable_once_its_name_is(memory):
    machine = Machine(memory, 1)
    name = machine.before / "new" / "f"
    assert machine.do(lambda _: write_atomic(name, b"x"))
    assert machine.disk.is_durable(name)
    machine.do(lambda _: write_in_place(name, b"y"))
    assert not machine.disk.is_durable(name)
    machine.do(lambda root: rename(name, root / "g"))
    assert not machine.disk.is_durable(machine.before / "g")
    assert not machine.disk.is_durable(name)


def test_rot_flips_one_bit(memory):
    machine = Machine(memory, 1)
    machine.do(lambda root: write_atomic(root / "f", bytes(100)))
    assert machine.disk.rot(machine.before / "f")
    assert sum(byte.bit_count() for byte in (machine.before / "f").read_bytes()) == 1
    assert not machine.disk.rot(machine.before / "missing")


def test_the_spool_outlives_every_moment(memory):
    def put(root: Path, machine: Machine) -> None:
        machine.done = 0
        spool = machine.spool = Spool(root / "spool.sqlite3", 1 << 20)
        for n in (1, 2):
            frame = b"%d" % n * 500
            spool.put(task="t", round_=n, digest=digest(frame), payload=frame, carry=None)
            machine.done = n

    for machine, _ in every_moment(memory, put, seeds=range(2)):
        machine.spool.close()
        spool = Spool(machine.after / "spool.sqlite3", 1 << 20)
        rounds = [entry.round for entry in spool.pending()]
        assert rounds in ([*range(1, machine.done + 1)], [*range(1, machine.done + 2)])
        assert all(spool.payload(digest(b"%d" % n * 500)) == b"%d" % n * 500 for n in rounds)
        spool.close()


def test_the_coordinators_database_outlives_every_moment(memory):
    def put(root: Path, machine: Machine) -> None:
        machine.done = 0
        store = machine.store = Database(root / "coordinator.sqlite3")
        for n in (1, 2, 3):
            store.put_meta({"n": str(n), "twice": str(2 * n)})
            machine.done = n

    for machine, _ in every_moment(memory, put, seeds=range(2)):
        machine.store.close()
        with Database(machine.after / "coordinator.sqlite3") as store:
            found = int(store.get_meta("n") or 0)
            assert found in (machine.done, machine.done + 1)
            assert int(store.get_meta("twice") or 0) == 2 * found


def test_a_database_that_is_not_synced_loses_its_last_commits_and_nothing_else(memory):
    seen = set()
    for seed in range(30):
        machine = Machine(memory, seed)
        db = sqlite3.connect(machine.before / "windows.sqlite3", isolation_level=None)
        db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE t(n INTEGER)")
        for n in range(10):
            db.execute("INSERT INTO t VALUES(?)", (n,))
        after = sqlite3.connect(machine.cut() / "windows.sqlite3")
        db.close()
        assert after.execute("PRAGMA quick_check").fetchone() == ("ok",)
        if after.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,):
            rows = [n for (n,) in after.execute("SELECT n FROM t ORDER BY n")]
            assert rows == list(range(len(rows)))
            seen.add(len(rows))
        after.close()
    assert 10 in seen
    assert len(seen) > 3


def test_a_download_that_a_power_cut_tore_ends_with_the_right_blob_or_begins_anew(memory):
    data = bytes(range(256)) * 16
    ref = BlobRef(digest=digest(data), size=len(data))

    def pull(root: Path, _: Machine | None = None) -> bytes:
        store = BlobStore(root / "blobs")
        partial = store.partial(ref, 1024)
        for index in range(4):
            partial.add(index, chunk_at(data, index, 1024))
        partial.finish()
        return store.get(ref.digest)

    torn = 0
    for machine, _ in every_moment(memory, pull, seeds=range(3)):
        try:
            again = pull(machine.after)
        except Refused:  # the map promised chunks that were lost: the digest says so
            torn += 1
            again = pull(machine.after)
        assert again == data
    assert torn > 0


def test_commits_are_synced_where_a_receipt_rests_on_them(tmp_path):
    """The simulation takes SQLite at its word for these two."""
    spool = Spool(tmp_path / "spool.sqlite3", 1 << 20)
    assert spool._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert spool._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    spool.close()
    with Database(tmp_path / "coordinator.sqlite3") as store, store.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


def test_the_real_disk_counts_what_it_writes(tmp_path):
    disk = Disk()
    token = DISK.set(disk)
    try:
        write_atomic(tmp_path / "f", b"12345")
        assert (disk.counters.bytes_written, disk.counters.syncs) == (5, 2)
        with Database(tmp_path / "coordinator.sqlite3") as store:
            store.put_meta({"a": "b"})
            store.rows(sa.select(schema.meta))
        assert disk.counters.commits == 1
    finally:
        DISK.reset(token)
