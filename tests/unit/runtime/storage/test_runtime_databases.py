"""What SQLite's errors mean: one place sorts them for both daemons and all commands."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial

import pytest

from coordinator.storage.database import Database
from coordinator.storage.engines.shared_sqlite import SharedSqlite
from coordinator.storage.migrations import put_back
from edge_agent.windows.store_file import open_file
from protocol.errors import Misconfigured, Transient
from runtime.storage import sqlite
from runtime.storage.files import ReadOnlyDisk
from runtime.storage.spool import Spool
from runtime.storage.sqlite import open_reader, require_index, sorted_error, sqlite_errors
from tests.support.clock import ManualClock


def _error(code: int, words: str = "disk I/O error") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (sqlite3.SQLITE_FULL, Transient, "the disk of {} is full"),
        (sqlite3.SQLITE_BUSY, Transient, "another process holds the database for longer than 10 s"),
        (sqlite3.SQLITE_LOCKED, Transient, "another process holds the database for longer than 10 s"),
        (sqlite3.SQLITE_IOERR | 3 << 8, Transient, "the disk of {} fails"),
        (sqlite3.SQLITE_READONLY, ReadOnlyDisk, "the disk of {} is read-only"),
        (sqlite3.SQLITE_CANTOPEN, Misconfigured, "is it a file"),
        (sqlite3.SQLITE_CORRUPT, Misconfigured, "damaged"),
        (sqlite3.SQLITE_ERROR, Transient, "cannot be used"),
    ],
)
def test_each_error_of_sqlite_has_its_kind_and_names_the_folder(tmp_path, code, kind, words) -> None:
    found = sorted_error(_error(code), tmp_path / "a.sqlite3")
    assert type(found) is kind
    assert words.format(tmp_path) in str(found)
    assert str(tmp_path / "a.sqlite3") in str(found)


def test_what_is_not_known_at_the_opening_is_the_operators(tmp_path) -> None:
    assert isinstance(sorted_error(_error(1), tmp_path / "a", opening=True), Misconfigured)


def test_a_folder_that_is_gone_is_named(tmp_path) -> None:
    found = sorted_error(_error(sqlite3.SQLITE_IOERR), tmp_path / "gone" / "a.sqlite3")
    assert isinstance(found, Transient)
    assert f"{tmp_path / 'gone'} was removed" in str(found)


def test_an_error_of_input_and_output_on_a_disk_without_room_is_a_full_disk(tmp_path, monkeypatch) -> None:
    """SQLite says "disk I/O error" or "unable to open" where its index does not fit."""
    usage = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 10, 10, 0, 255))
    monkeypatch.setattr(sqlite.shutil, "disk_usage", lambda _: type("U", (), {"free": usage.f_bavail}))
    for code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        assert "is full" in str(sorted_error(_error(code), tmp_path / "a.sqlite3"))


def test_a_database_that_another_process_holds_is_waited_for_and_then_said(tmp_path) -> None:
    file = tmp_path / "a.sqlite3"
    holder, waiter = (sqlite3.connect(file, isolation_level=None, timeout=0.1) for _ in range(2))
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Transient, match=r"longer than 0\.1 s .*fuser -v"), sqlite_errors(file, waited_s=0.1):
        waiter.execute("BEGIN IMMEDIATE")
    holder.close()
    waiter.close()


def _full(monkeypatch) -> None:
    monkeypatch.setattr(sqlite.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))


def test_on_a_full_disk_a_database_is_not_opened_for_which_no_index_fits(tmp_path, monkeypatch) -> None:
    """The first write to a hole of the index ends the process by SIGBUS."""
    file = tmp_path / "a.sqlite3"
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t (x)")
    _full(monkeypatch)
    require_index(file)  # it is there already, whole
    with open_reader(file) as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    reader.close()
    index = sqlite.beside(file)[1]
    os.truncate(index, 0)
    os.truncate(index, 32768)  # a hole
    for opened in (require_index, open_reader):
        with pytest.raises(Transient, match="is full"):
            opened(file)
    writer.close()


def test_on_a_full_disk_a_database_that_was_closed_in_order_is_still_read(tmp_path, monkeypatch) -> None:
    file = tmp_path / "a.sqlite3"
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t (x)")
    writer.close()
    _full(monkeypatch)
    with open_reader(file) as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    reader.close()
    assert not sqlite.beside(file)[1].exists(), "there was no room for an index"


def test_a_reader_of_what_is_not_there_says_so(tmp_path) -> None:
    with pytest.raises(Transient, match="it is gone"):
        open_reader(tmp_path / "a.sqlite3")


@pytest.mark.parametrize("gone", ["database", "wal", "folder", "replaced"])
def test_files_that_are_open_and_gone_are_noticed(tmp_path, gone: str) -> None:
    """SQLite itself goes on, into files that nobody will find again."""
    folder = tmp_path / "state"
    folder.mkdir()
    file = folder / "a.sqlite3"
    with closing(SharedSqlite(file)) as tables:
        with tables.change() as db:
            db.execute("INSERT INTO meta VALUES ('a', 1)")
        match gone:
            case "database":
                file.unlink()
            case "wal":
                sqlite.beside(file)[0].unlink()
            case "folder":
                shutil.rmtree(folder)
            case "replaced":
                folder.rename(tmp_path / "before")
                shutil.copytree(tmp_path / "before", folder)
        words = f"{folder} was removed, or another disk is mounted"
        with pytest.raises(Transient, match=words), tables.change() as db:
            db.execute("INSERT INTO meta VALUES ('b', 2)")


async def test_the_watch_ends_a_daemon_whose_files_are_gone(tmp_path) -> None:
    spool = Spool(tmp_path / "state" / "spool.sqlite3", 1 << 20)
    clock = ManualClock()
    looking = asyncio.create_task(sqlite.watch(spool.require_there, clock))
    await asyncio.sleep(0)
    shutil.rmtree(tmp_path / "state")
    while not looking.done():
        await clock.advance(1.0)
        await asyncio.sleep(0.01)
    with pytest.raises(Transient, match="it is gone"):
        looking.result()
    with pytest.raises(Transient, match="it is gone"):
        spool.clear("a" * 64)
    spool.close()


OPENERS = {
    "coordinator": Database,
    "coordinator, reading": partial(Database, read_only=True),
    "identities, rollouts": SharedSqlite,
    "going back to a release": partial(put_back, known=0),
    "spool": partial(Spool, budget_bytes=1 << 20),
    "windows": partial(open_file, budget_bytes=1 << 20),
}


@pytest.mark.parametrize("opened", OPENERS.values(), ids=OPENERS)
def test_every_opener_says_that_the_disk_is_full_before_sqlite_meets_it(
    tmp_path, monkeypatch, opened
) -> None:
    """What a killed daemon left, its index gone: SQLite's first write to a new one could end the process."""
    file, kept = tmp_path / "a.sqlite3", tmp_path / "kept"
    kept.mkdir()
    writer = sqlite3.connect(file, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE t (x)")
    for part in (file, sqlite.beside(file)[0]):
        shutil.copy(part, kept)
    _full(monkeypatch)
    with pytest.raises(Transient, match=f"the disk of {kept} is full"):
        opened(kept / file.name)
    assert not sqlite.beside(kept / file.name)[1].exists(), "SQLite was not asked"
    writer.close()
