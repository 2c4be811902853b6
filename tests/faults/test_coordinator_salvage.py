"""A damaged database: what was acknowledged counts again, from the backup, the manifests and the frames."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from functools import reduce
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from coordinator.aggregation.fold import fold_round, limits_for
from coordinator.recovery import rebuild
from coordinator.status.history import read
from coordinator.storage import schema
from coordinator.storage.backup import back_up, backup_of
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from coordinator.storage.update_journal import Journal
from protocol.errors import Misconfigured, Transient
from protocol.frames.frame import digest
from protocol.topics import Kind
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.bench import Bench, bench
from tests.support.coordinator.fake import TinyServer, frame, header, tiny_task

NAMES = ("d1", "d2", "d3")
TASK = tiny_task(count=3, min_devices=3)


def database(root: Path) -> Path:
    return root / "coordinator" / DATABASE


async def deliver(made: Bench, *names: str) -> dict[str, bytes]:
    """The updates of these devices for the open round, all at once; returns when they have receipts."""
    state = made.app.driver.state
    sent = {n: frame(header(n, state.round, state.manifest), float(n[1:])) for n in names}
    await asyncio.gather(*(made.give(n, Kind.UPDATE, update) for n, update in sent.items()))
    for name, update in sent.items():
        last = made.link.receipts(name)[-1]
        assert (last.digest, last.status) == (digest(update), "accepted")
    return sent


async def begin(made: Bench) -> None:
    await made.online(*NAMES)
    await made.phase("collecting")


async def two_of_three(root: Path) -> None:
    """Round 2 is open; d1 and d2 hold receipts for it."""
    async with bench(root, TASK) as made:
        await begin(made)
        await deliver(made, *NAMES)
        await made.until(lambda: made.app.driver.state.round == 2)
        await made.phase("collecting")
        await made.until(lambda: made.app.round_worker._secured == 1)
        await deliver(made, "d1", "d2")
        made.app.link.connected = False  # a crash: nothing more is said


def overwrite(path: Path, at: int, count: int = 4096) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(os.urandom(count))


def change(path: Path, words: str) -> None:
    """Values that were never written, in sound pages."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(words)
        raw.commit()


def rot_the_schema(path: Path) -> None:
    """One bit in the text of a table: for SQLite only another name for a column."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    assert data.count(b"selected JSON") == 1
    path.write_bytes(data.replace(b"selected JSON", b"semected JSON"))


def damage(path: Path, how: str) -> None:
    match how:
        case "header":
            overwrite(path, 0, 100)
        case "pages":
            overwrite(path, 4096, path.stat().st_size - 4096)
        case "empty":
            path.write_bytes(b"")
        case "gone":
            path.unlink()
        case "value":
            change(path, "UPDATE events SET event = replace(event, '\"d2\"', '\"d9\"')")
        case "schema":
            rot_the_schema(path)
        case "json":
            change(path, "UPDATE devices SET state = substr(state, 1, 40) WHERE device = 'd2'")


async def ends_well(root: Path) -> None:
    """d3 delivers what is missing, and round 2 is the mean of all three."""
    async with bench(root, TASK) as made:
        assert tuple(made.app.driver.state.delivered) == ("d1", "d2")
        assert made.app.driver.state.round == 2
        await begin(made)
        await deliver(made, "d3")
        await made.until(lambda: made.app.driver.state.version == 2)
        np.testing.assert_array_equal((await made.app.model.state())["head"]["head/w"], 4.0)
    found = read(root / "coordinator")
    assert found["versions"][-1]["devices"] == list(NAMES)
    counted = next(one for one in found["rounds"] if one["round"] == 2)["updates"]
    assert [(one["device"], one["blobs"]) for one in counted] == [(name, ["head"]) for name in NAMES], (
        "what a selection policy looks back on"
    )


@pytest.mark.parametrize("how", ["header", "pages", "empty", "gone", "value", "schema", "json"])
async def test_acknowledged_updates_count_again_after_the_database_is_damaged(
    tmp_path: Path, how: str
) -> None:
    await two_of_three(tmp_path)
    damage(database(tmp_path), how)
    with capture_logs() as logs:
        await ends_well(tmp_path)
    said = [entry for entry in logs if entry["event"] == "database_salvaged"]
    assert len(said) == 1
    assert "2 accepted updates of round 2 count again, from their frames" in said[0]["words"]
    if how != "gone":
        assert database(tmp_path).with_name(f"{DATABASE}.damaged").exists()
    assert "2 accepted updates" in read(tmp_path / "coordinator")["salvaged"]


@pytest.mark.parametrize("copy", ["gone", "damaged"])
async def test_without_a_backup_the_manifests_and_frames_are_enough(tmp_path: Path, copy: str) -> None:
    await two_of_three(tmp_path)
    damage(database(tmp_path), "pages")
    damage(backup_of(database(tmp_path)), "gone" if copy == "gone" else "pages")
    with capture_logs() as logs:
        await ends_well(tmp_path)
    words = next(entry for entry in logs if entry["event"] == "database_salvaged")["words"]
    assert "version 1 was taken from its manifest" in words
    assert any("backup" in one and "lost" in one for one in words), "what cannot be salvaged is said"


async def test_a_version_that_only_its_manifest_knows_is_not_made_again(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    old = backup_of(database(tmp_path)).read_bytes()
    await ends_well(tmp_path)
    damage(database(tmp_path), "pages")
    backup_of(database(tmp_path)).write_bytes(old)  # of version 1: version 2 was made since
    async with bench(tmp_path, TASK) as made:
        assert (made.app.driver.state.version, made.app.driver.state.round) == (2, 3)
        np.testing.assert_array_equal((await made.app.model.state())["head"]["head/w"], 4.0)


async def test_a_salvage_that_was_cut_off_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await two_of_three(tmp_path)
    damage(database(tmp_path), "pages")

    def cut(*_: object) -> None:
        raise Transient("the power went")

    for step in ("_restore", "add_to"):
        monkeypatch.setattr(rebuild._Rebuild, step, cut)
        with pytest.raises(Transient):
            async with bench(tmp_path, TASK):
                pass
        monkeypatch.undo()
        assert rebuild.rebuild_marker(database(tmp_path)).exists()
    await ends_well(tmp_path)
    assert not rebuild.rebuild_marker(database(tmp_path)).exists()
    assert database(tmp_path).with_name(f"{DATABASE}.damaged").read_bytes()[4096:8192] != b""


async def test_a_rotten_frame_of_the_backup_is_reported_as_refused(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    back_up(database(tmp_path))  # in the middle of the round: it knows of d1 and d2
    for file in (tmp_path / "coordinator" / "updates" / "2").iterdir():
        overwrite(file, file.stat().st_size - 20, 10)  # the last frame of the group, or one alone
    damage(database(tmp_path), "pages")
    async with bench(tmp_path, TASK) as made:
        lost = set(NAMES[:2]) - set(made.app.driver.state.delivered)
        assert lost
        assert {(device, "wrong_digest") for device in lost} <= set(made.refusals())


async def test_a_frame_that_rotted_is_found_at_the_start_and_its_device_asked_again(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    with Database(database(tmp_path)) as store:
        entry = Journal(store, tmp_path / "coordinator" / "updates").entries(2, ["d2"])[0]
    overwrite(entry.path, entry.at + 5, 3)
    async with bench(tmp_path, TASK) as made:
        await begin(made)
        await made.until(lambda: tuple(made.app.driver.state.delivered) == ("d1",))
        await made.until(lambda: bool(made.link.receipts("d2")))
        assert made.link.receipts("d2")[-1].reason == "wrong_digest"
        await made.until(lambda: any(o.round == 2 for o in made.link.to("d2", Kind.OFFER)))
        await deliver(made, "d2", "d3")
        await made.until(lambda: made.app.driver.state.version == 2)
        np.testing.assert_array_equal((await made.app.model.state())["head"]["head/w"], 4.0)


@pytest.mark.parametrize("failing", ["back_up", "journal.database_bytes"])
async def test_frames_stay_until_a_backup_knows_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    async with bench(tmp_path, TASK) as made:
        *parts, name = failing.split(".")
        part = reduce(getattr, parts, made.app.round_worker)
        monkeypatch.setattr(part, name, Mock(side_effect=Transient("no space left")))
        await begin(made)
        for number in (1, 2):
            await made.until(lambda number=number: made.app.driver.state.round == number)
            await made.phase("collecting")
            await deliver(made, *NAMES)
        await made.until(lambda: made.app.driver.state.version == 2)
        await made.phase("collecting")
        assert (tmp_path / "coordinator" / "updates" / "1").is_dir()
        monkeypatch.undo()
        made.app.round_worker.back_up = lambda: back_up(made.app.storage.root / DATABASE)
        await deliver(made, *NAMES)
        await made.until(lambda: made.app.round_worker._secured == 3)
        assert not (tmp_path / "coordinator" / "updates" / "1").exists()


async def test_no_backup_replaces_a_good_one_by_a_copy_of_a_damaged_database(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    good = backup_of(database(tmp_path)).read_bytes()
    overwrite(database(tmp_path), 8192, 4096)
    with pytest.raises(Transient, match="damaged"):
        back_up(database(tmp_path))
    assert backup_of(database(tmp_path)).read_bytes() == good
    assert not list(database(tmp_path).parent.glob("*.part"))


def rot_an_index(path: Path) -> None:
    """A key of an index that leads to another row's: ``quick_check`` passes over it."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = raw.execute("PRAGMA page_size").fetchone()[0]
        where = "type = 'index' AND tbl_name = 'meta'"
        page = raw.execute(f"SELECT rootpage FROM sqlite_master WHERE {where}").fetchone()[0]  # noqa: S608 - no input
    data = bytearray(path.read_bytes())
    data[page * size - 3] ^= 0xFF
    path.write_bytes(data)


async def test_a_rotten_index_neither_becomes_a_backup_nor_is_restored_from_one(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    path = database(tmp_path)
    good = backup_of(path).read_bytes()
    rot_an_index(path)
    with pytest.raises(Transient, match="damaged"):
        back_up(path)
    assert backup_of(path).read_bytes() == good
    rot_an_index(backup_of(path))  # both: what is left are manifests and frames
    await ends_well(tmp_path)


async def test_a_rotten_schema_neither_becomes_a_backup_nor_is_restored_from_one(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    path = database(tmp_path)
    good = backup_of(path).read_bytes()
    rot_the_schema(path)
    with pytest.raises(Transient, match="attempts lacks selected"):
        back_up(path)
    assert backup_of(path).read_bytes() == good
    rot_the_schema(backup_of(path))
    await ends_well(tmp_path)


async def test_a_backup_whose_task_rotted_does_not_keep_the_coordinator_from_starting(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    for path in (database(tmp_path), backup_of(database(tmp_path))):
        change(path, "UPDATE meta SET value = '{\"name\": \"ti' WHERE key = 'task'")
    await ends_well(tmp_path)


async def test_a_device_whose_row_rotted_is_forgotten_until_it_reports(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    change(database(tmp_path), "UPDATE devices SET state = '{}' WHERE device = 'd2'")
    with capture_logs() as logs:
        await ends_well(tmp_path)
    assert [entry["device"] for entry in logs if entry["event"] == "device_forgotten"] == ["d2"]


def back_to_the_second(raw: sqlite3.Connection) -> None:
    """The tables as the release before selection policies left them."""
    for table, column in (("updates", "blobs"), ("attempts", "policy"), ("attempts", "passed")):
        raw.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    for table in ("messages", "bundles"):
        raw.execute(f"DROP TABLE {table}")
    raw.execute("PRAGMA user_version=2")


async def test_tables_of_the_second_release_are_brought_up_to_date(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    for path in (database(tmp_path), backup_of(database(tmp_path))):
        with closing(sqlite3.connect(path)) as raw:
            back_to_the_second(raw)
            raw.commit()
    shutil.copytree(tmp_path, tmp_path / "damaged", ignore=shutil.ignore_patterns("damaged"))
    damage(database(tmp_path / "damaged"), "pages")
    await ends_well(tmp_path / "damaged")
    async with bench(tmp_path, TASK) as made:
        await begin(made)
        await deliver(made, "d3")
        await made.until(lambda: made.app.driver.state.version == 2)
    found = next(one for one in read(tmp_path / "coordinator")["rounds"] if one["round"] == 2)
    assert {one["device"]: one["blobs"] for one in found["updates"]} == {
        "d1": None,
        "d2": None,
        "d3": ["head"],
    }
    assert [one["policy"] for one in found["attempts"]] == [""]


async def test_tables_that_were_brought_up_to_date_in_part_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it or nothing: else the next start would find a column that it is about to add."""
    await two_of_three(tmp_path)
    with closing(sqlite3.connect(database(tmp_path))) as raw:
        back_to_the_second(raw)
        raw.commit()
    with monkeypatch.context() as patch:
        patch.setitem(schema.UPGRADES, 2, (*schema.UPGRADES[2], "ALTER TABLE nowhere ADD COLUMN x"))
        with pytest.raises(Misconfigured, match="no such table"):
            Database(database(tmp_path))
    with Database(database(tmp_path)) as store:
        assert store.rows(sa.select(schema.updates.c.blobs))


async def test_the_messages_of_a_routed_method_count_again_with_their_updates(tmp_path: Path) -> None:
    class Routed(TinyServer):
        def serving_route(self, *_: object) -> tuple[str, ...]:
            return ("head",)

    task = tiny_task(count=2, min_devices=2)
    async with bench(tmp_path, task, server=Routed()) as made:
        await made.online("d1", "d2")
        await made.phase("collecting")
        update = frame(header("d1", 1, made.app.driver.state.manifest, extra={"best": 2}))
        await made.give("d1", Kind.UPDATE, update)
        assert made.link.receipts("d1")[-1].status == "accepted"
    damage(database(tmp_path), "gone")
    backup_of(database(tmp_path)).write_bytes(b"")
    async with bench(tmp_path, task, server=Routed()) as made:
        rows = made.app.storage.store.rows(sa.select(schema.messages))
        assert rows == [{"device": "d1", "round": 1, "extra": {"best": 2}}]


async def test_tables_of_the_first_release_are_brought_up_to_date(tmp_path: Path) -> None:
    await two_of_three(tmp_path)
    with closing(sqlite3.connect(database(tmp_path))) as raw:
        back_to_the_second(raw)
        files = dict(raw.execute("SELECT device, file FROM updates WHERE round = 2").fetchall())
        if any(files.values()):  # the first release wrote one file an update
            folder = tmp_path / "coordinator" / "updates" / "2"
            entries = raw.execute("SELECT digest, size, file, at FROM updates WHERE round = 2").fetchall()
            for name, size, file, at in entries:
                (folder / name).write_bytes((folder / file).read_bytes()[at : at + size])
        for column in ("file", "at"):
            raw.execute(f"ALTER TABLE updates DROP COLUMN {column}")
        raw.execute("ALTER TABLE events DROP COLUMN crc")
        raw.execute("PRAGMA user_version=1")
        raw.commit()
    with pytest.raises(Misconfigured, match="older lichen"):
        read(tmp_path / "coordinator")
    async with bench(tmp_path, TASK) as made:
        assert tuple(made.app.driver.state.delivered) == ("d1", "d2")
        await begin(made)
        await deliver(made, "d3")
        await made.until(lambda: made.app.driver.state.version == 2)


async def test_what_was_salvaged_folds_to_the_same_bits(tmp_path: Path) -> None:
    """The version after a salvage is the fold of exactly the acknowledged updates."""
    await two_of_three(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "undisturbed", ignore=shutil.ignore_patterns("undisturbed"))
    damage(database(tmp_path), "pages")
    for root in (tmp_path, tmp_path / "undisturbed"):
        await ends_well(root)
    manifests = [
        read(root / "coordinator")["versions"][-1]["manifest"]
        for root in (tmp_path, tmp_path / "undisturbed")
    ]
    assert manifests[0] == manifests[1]
    with Database(database(tmp_path)) as store:
        entries = Journal(store, tmp_path / "coordinator" / "updates").entries(2, NAMES)
        state = {"head": {"head/w": np.full(64, 2.0, np.float32)}}
        again = fold_round(TinyServer(), TASK, 2, state, entries, limits_for(state, 1 << 20))[0]
    np.testing.assert_array_equal(again["head"]["head/w"], 4.0)
    assert BlobStore(tmp_path / "coordinator" / "blobs").has(manifests[0])
