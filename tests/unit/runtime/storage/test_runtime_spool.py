import asyncio
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from structlog.testing import capture_logs

from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.frames.frame import digest as digest_of
from runtime.storage.spool import Spool, SpoolEntry


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "spool.sqlite3"


@pytest.fixture
def spool(path):
    spool = Spool(path, 10_000, wall=lambda: 5.0)
    yield spool
    spool.close()


def _put(spool: Spool, round_: int, size: int = 10, carry=None, task: str = "t") -> str:
    payload = bytes([(round_ + (0 if task == "t" else 100)) % 256]) * size
    spool.put(task=task, round_=round_, digest=digest_of(payload), payload=payload, carry=carry)
    return digest_of(payload)


def test_there_until_cleared(spool):
    digest = _put(spool, 1)
    assert spool.pending() == [SpoolEntry("t", 1, digest, 10, 5.0)]
    assert spool.payload(digest) == b"\x01" * 10
    assert spool.clear(digest)
    assert not spool.clear(digest)
    assert spool.pending() == []
    with pytest.raises(KeyError):
        spool.payload(digest)


def test_the_same_round_replaces_and_the_carry_goes_with_it(spool):
    _put(spool, 1, carry={"a": np.ones((2, 3), np.float32), "b": np.float32(2) * np.ones((), np.float32)})
    spool.put(task="t", round_=1, digest="new", payload=b"new", carry={"a": np.zeros((1, 0), np.float32)})
    assert [e.digest for e in spool.pending()] == ["new"]
    carry = spool.carry("t")
    assert list(carry) == ["a"]
    assert carry["a"].shape == (1, 0)
    assert spool.carry("other") == {}


def test_no_carry_leaves_the_old_one_and_a_receipt_does_not_touch_it(spool):
    _put(spool, 1, carry={"a": np.arange(6, dtype=np.float32).reshape(2, 3).T})
    spool.clear(_put(spool, 2))
    np.testing.assert_array_equal(spool.carry("t")["a"], [[0, 3], [1, 4], [2, 5]])
    spool.carry("t")["a"][0, 0] = 9  # ours to change


def test_it_survives_a_restart(path):
    first = Spool(path, 1000)
    _put(first, 3, carry={"a": np.ones(4, np.float32)})
    first.close()
    second = Spool(path, 1000)
    assert [e.round for e in second.pending()] == [3]
    assert second.bytes_used == 10 + 16
    second.close()


async def test_any_thread_may_use_it(spool):
    digest = await asyncio.to_thread(_put, spool, 1)
    assert spool.payload(digest) == b"\x01" * 10


def test_over_the_budget_the_oldest_is_dropped_counted_and_logged(spool):
    with capture_logs() as logs:
        for round_ in range(5):
            _put(spool, round_, 3000)
    assert [e.round for e in spool.pending()] == [2, 3, 4]
    assert spool.dropped == 2
    assert spool.bytes_used <= 10_000
    assert any(e["event"] == "updates_dropped" for e in logs)


def test_what_can_never_fit_is_refused_and_changes_nothing(spool):
    _put(spool, 1, carry={"a": np.ones(4, np.float32)})
    before = spool.pending(), spool.bytes_used
    with pytest.raises(Refused) as caught:
        _put(spool, 2, 10_001)
    assert caught.value.reason is Reason.FULL
    with pytest.raises(Refused):
        _put(spool, 1, 10, carry={"a": np.ones(3000, np.float32)})
    assert (spool.pending(), spool.bytes_used) == before
    assert spool.dropped == 0


@pytest.mark.parametrize("garbage", [b"not a database at all" * 100, b""], ids=["garbage", "empty"])
def test_a_corrupt_file_is_moved_aside(path, garbage):
    path.parent.mkdir()
    for n in (1, 2):
        path.write_bytes(garbage)
        spool = Spool(path, 1000)
        assert spool.pending() == []
        _put(spool, 1)
        spool.close()
        assert path.with_name(f"spool.sqlite3.corrupt-{n}").exists() == bool(garbage)


def test_damage_inside_the_file_is_found_at_the_start(path):
    spool = Spool(path, 1_000_000)
    for round_ in range(20):
        _put(spool, round_, 5000)
    spool.close()
    data = bytearray(path.read_bytes())
    data[4096 : 4096 * 6] = b"\xff" * (4096 * 5)
    path.write_bytes(data)
    with capture_logs() as logs:
        again = Spool(path, 1_000_000)
    assert again.pending() == []
    again.close()
    assert any(e["event"] == "spool_moved_aside" for e in logs)
    assert path.with_name("spool.sqlite3.corrupt-1").exists()


def test_synchronous_full_and_wal(spool):
    assert spool._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert spool._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_full_disk_is_transient_and_changes_nothing(spool):
    _put(spool, 1, 1000)
    pages = spool._db.execute("PRAGMA page_count").fetchone()[0]
    spool._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Transient, match=r"the disk of .* is full"):
        _put(spool, 2, 9000, carry={"a": np.ones(10, np.float32)})
    assert [e.round for e in spool.pending()] == [1]
    assert spool.carry("t") == {}


def test_a_place_that_cannot_be_opened_is_misconfigured(tmp_path):
    (tmp_path / "f").write_text("a file")
    with pytest.raises(Misconfigured, match=str(tmp_path)):
        Spool(tmp_path / "f" / "spool.sqlite3", 1000)
    (tmp_path / "folder.sqlite3").mkdir()
    with pytest.raises(Misconfigured, match=r"unable to open.*is it a file"):
        Spool(tmp_path / "folder.sqlite3", 1000)


def test_a_disk_that_is_full_at_the_start_is_transient_and_named(path, monkeypatch):
    def full(_self):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(Spool, "_open", full)
    with pytest.raises(Transient, match=f"{path}: the disk of {path.parent} is full"):
        Spool(path, 1000)


def test_after_close_nothing_works(path):
    spool = Spool(path, 1000)
    spool.close()
    with pytest.raises(sqlite3.ProgrammingError):
        spool.pending()


def _rot(path, table: str, column: str) -> None:
    """A value changes in its place: SQLite finds nothing wrong with its pages."""
    with closing(sqlite3.connect(path)) as raw:
        for row, value in raw.execute(f"SELECT rowid, {column} FROM {table}").fetchall():  # noqa: S608 - our words
            rotten = value.replace(b"\x01", b"\x03")
            raw.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (rotten, row))  # noqa: S608 - our words
        raw.commit()
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_damaged_frame_is_dropped_counted_and_never_sent(path):
    spool = Spool(path, 10_000)
    bad, good = _put(spool, 1), _put(spool, 2)
    spool.close()
    _rot(path, "entry", "payload")
    spool = Spool(path, 10_000)
    with pytest.raises(KeyError, match="damaged"):
        spool.payload(bad)
    assert spool.payload(good) == b"\x02" * 10
    assert [entry.digest for entry in spool.pending()] == [good]
    assert spool.rotten == 1
    spool.close()


def test_a_carry_that_rotted_is_dropped_whole(path):
    spool = Spool(path, 10_000)
    _put(spool, 1, carry={"a": np.frombuffer(b"\x01\x01\x01\x01", "<f4"), "b": np.ones(2, np.float32)})
    spool.close()
    _rot(path, "carry", "data")
    spool = Spool(path, 10_000)
    assert spool.carry("t") == {}
    assert spool.rotten == 1
    assert spool.carry("t") == {}
    assert spool.rotten == 1, "it is gone, not found again"
    spool.close()


def test_a_spool_of_the_first_release_is_read_and_gets_checksums(path):
    spool = Spool(path, 10_000)
    _put(spool, 1, carry={"a": np.ones(2, np.float32)})
    spool.close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("ALTER TABLE carry DROP COLUMN crc")
    spool = Spool(path, 10_000)
    np.testing.assert_array_equal(spool.carry("t")["a"], [1, 1])
    _put(spool, 2, carry={"a": np.ones(2, np.float32)})
    spool.close()
    _rot(path, "entry", "payload")
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(crc) FROM carry").fetchone() == (1,)


def test_corrupt_files_that_are_kept_are_few(path):
    path.parent.mkdir()
    for n in range(6):
        path.write_bytes(b"not a database %d" % n * 100)
        Spool(path, 1000).close()
    kept = sorted(path.parent.glob("*.corrupt-*"))
    assert len(kept) == 3
    assert kept[-1].read_bytes().startswith(b"not a database 5")
