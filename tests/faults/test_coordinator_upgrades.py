"""A schema step of a next release on a state folder in use, and the way back from it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.identity import store as identity_store
from coordinator.identity.store import IdentityStore as IdentityBook
from coordinator.rollout import store as rollout_book
from coordinator.rollout.store import RolloutStore as RolloutBook
from coordinator.status.history import read
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.engines.shared_tables import Design
from coordinator.storage.migrations import KEPT, copies_of, keep_copy
from protocol.errors import Misconfigured
from protocol.topics import Kind
from runtime.storage.folder_lock import FolderLock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

DATABASE = "coordinator.sqlite3"


def next_step(patch: pytest.MonkeyPatch, *, readable_from: int) -> None:
    """What a next release may do: a column here, and the same in the books."""
    version = schema.VERSION
    patch.setattr(schema, "UPGRADES", {**schema.UPGRADES, version: (_column("versions"),)})
    patch.setattr(schema, "VERSION", version + 1)
    patch.setattr(schema, "READABLE_FROM", readable_from or version + 1)
    for module, name, table in (
        (identity_store, "IDENTITIES", "devices"),
        (rollout_book, "ROLLOUTS", "past"),
    ):
        old = getattr(module, name)
        patch.setattr(
            module,
            name,
            Design(
                old.file,
                old.suffix,
                old.schema,
                old.version + 1,
                old.version if readable_from else old.version + 1,
                {old.version: (_column(table),)},
                old.lost,
            ),
        )


def _column(table: str) -> str:
    return f"ALTER TABLE {table} ADD COLUMN mood VARCHAR NOT NULL DEFAULT 'good'"


def columns(file: Path, table: str) -> set[str]:
    with closing(sqlite3.connect(file)) as raw:
        return {row[1] for row in raw.execute(f"PRAGMA table_info({table})")}


async def deliver(made, device: str) -> None:
    state = made.app.driver.state
    await made.give(device, Kind.UPDATE, frame(header(device, state.round, state.manifest)))


async def one_round(made, *devices: str) -> None:
    version = made.app.driver.state.version
    await made.online(*devices)
    await made.phase("collecting")
    for device in devices:
        await deliver(made, device)
    await made.until(lambda: made.app.driver.state.version == version + 1)


TASK = tiny_task(count=9, min_devices=2)


async def test_a_file_of_a_next_release_is_used_where_that_says_so(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "coordinator"
    async with bench(tmp_path, TASK) as made:
        await one_round(made, "a", "b")
    with monkeypatch.context() as patch:
        next_step(patch, readable_from=schema.VERSION)
        async with bench(tmp_path, TASK) as made:
            await one_round(made, "a", "b")
        assert list(copies_of(folder / DATABASE)) == [schema.VERSION - 1]
    assert "mood" in columns(folder / DATABASE, "versions")
    async with bench(tmp_path, TASK) as made:
        assert made.app.driver.state.version == 2
        await one_round(made, "a", "b")
    with monkeypatch.context() as patch:  # and forth again: no step is taken twice
        next_step(patch, readable_from=schema.VERSION)
        async with bench(tmp_path, TASK) as made:
            await one_round(made, "a", "b")
    assert read(folder)["version"] == 4
    assert [row["round"] for row in read(folder)["rounds"]][:4] == [1, 2, 3, 4]
    assert read(folder)["salvaged"] == ""


async def test_back_from_a_step_that_is_not_readable_nothing_acknowledged_is_lost(
    tmp_path, monkeypatch
) -> None:
    """A version made after the upgrade stays, and an update accepted after it counts."""
    folder, config = tmp_path / "coordinator", tmp_path / "coordinator.toml"
    async with bench(tmp_path, TASK) as made:
        await one_round(made, "a", "b")
    with monkeypatch.context() as patch:
        next_step(patch, readable_from=0)
        async with bench(tmp_path, TASK) as made:
            await one_round(made, "a", "b")
            await made.phase("collecting")
            await deliver(made, "a")
            manifest = made.app.driver.state.manifest
            assert [one.status for one in made.link.receipts("a")] == ["accepted", "accepted"]
    with pytest.raises(Misconfigured, match=r"newer lichen.*sqlite3\.v\d+: lichen coordinator downgrade"):
        Database(folder / DATABASE)
    config.write_text(f'fleet = "tiny"\nstate_dir = "{folder}"\ntask = "task.toml"\n')
    alone = FolderLock(folder / "coordinator.lock", "coordinator")
    refused = CliRunner().invoke(app, ["downgrade", "--config", str(config)])
    assert isinstance(refused.exception, Misconfigured), "a coordinator runs on it"
    alone.close()
    done = CliRunner().invoke(app, ["downgrade", "--config", str(config), "--format", "json"])
    assert [words.split(":")[0] for words in json.loads(done.stdout)["put_back"]] == [DATABASE]
    assert "nothing was changed" in CliRunner().invoke(app, ["downgrade", "--config", str(config)]).stdout
    async with bench(tmp_path, TASK) as made:
        state = made.app.driver.state
        assert (state.version, state.manifest, state.round, tuple(state.delivered)) == (
            2,
            manifest,
            3,
            ("a",),
        )
        await made.online("a", "b")
        await deliver(made, "b")
        await made.until(lambda: made.app.driver.state.version == 3)
    assert "mood" not in columns(folder / DATABASE, "versions")
    assert "mood" in columns(folder / f"{DATABASE}.newer", "versions")


def test_the_books_are_copied_before_a_step_and_put_back(tmp_path, monkeypatch) -> None:
    token = _invited(tmp_path, "old")
    RolloutBook(tmp_path).close()
    with monkeypatch.context() as patch:
        next_step(patch, readable_from=0)
        newer = _invited(tmp_path, "new")
        RolloutBook(tmp_path).close()
    for opened in (IdentityBook, RolloutBook):
        with pytest.raises(Misconfigured, match=r"newer lichen.*\.v1: lichen coordinator downgrade"):
            opened(tmp_path)
    config = tmp_path / "coordinator.toml"
    config.write_text(f'fleet = "tiny"\nstate_dir = "{tmp_path}"\ntask = "task.toml"\n')
    said = CliRunner().invoke(app, ["downgrade", "--config", str(config)]).stdout
    assert "repeat the revocations and invites made since then" in said
    with IdentityBook(tmp_path) as book:
        assert {row.device for row in book.invites()} == {"old"}
    assert token != newer


def _invited(folder: Path, device: str) -> str:
    with IdentityBook(folder) as book:
        return str(book.invite(device, 3600.0))


def test_a_newer_file_without_a_copy_says_so(tmp_path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        next_step(patch, readable_from=0)
        Database(tmp_path / DATABASE).close()
    with pytest.raises(Misconfigured, match="there is no copy of it from before: install that release again"):
        Database(tmp_path / DATABASE)


def test_the_last_copies_alone_stay(tmp_path) -> None:
    Database(tmp_path / DATABASE).close()
    for version in (1, 2, 3, 10):
        keep_copy(tmp_path / DATABASE, version)
    assert sorted(copies_of(tmp_path / DATABASE)) == [3, 10]
    assert KEPT == 2
    assert not list(tmp_path.glob("*.part"))
    assert {path.stat().st_mode & 0o777 for path in copies_of(tmp_path / DATABASE).values()} == {0o600}
